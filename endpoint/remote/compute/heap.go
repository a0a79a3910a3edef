package compute

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

// heapDevice is a driver.Device for ordinary memory of this process, for tensors that are not shared with other
// processes. Allocating it is much cheaper than a page of a sealed memfd, which needs several system calls, and large
// allocations are pooled. Its zero value is ready for use.
type heapDevice struct {
	driver.Reclaim                          // memory of the heap is never refused
	pools          [bits.UintSize]sync.Pool // of *[]byte with a capacity of 1<<i bytes
}

// pooledFrom is the minimum size of pooled memory. Smaller pieces are cheaper to allocate than to clear.
const pooledFrom = 2 << 10

// Info implements driver.Device. The memory is not shared, so the device has no UUID.
func (d *heapDevice) Info() driver.Info {
	return driver.Info{Type: driver.CPU, Name: "heap", Granularity: 1}
}

// Alloc implements driver.Device.
func (d *heapDevice) Alloc(bytes int64) (driver.Memory, error) {
	m, err := d.AllocDirty(bytes)
	if err != nil {
		return nil, err
	}
	if bytes >= pooledFrom {
		clear(m.data)
	}
	return m, nil
}

// AllocDirty is Alloc for callers that overwrite all of the memory, which may contain old data.
func (d *heapDevice) AllocDirty(bytes int64) (*heapMemory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("heap: %w: %d bytes", driver.ErrInvalid, bytes)
	}
	m := &heapMemory{device: d, bytes: bytes}
	if bytes < pooledFrom {
		m.data = make([]byte, bytes)
		return m, nil
	}
	class := bits.Len64(uint64(bytes - 1))
	if whole, ok := d.pools[class].Get().(*[]byte); ok {
		m.data = (*whole)[:bytes]
		return m, nil
	}
	m.data = make([]byte, bytes, 1<<class)
	return m, nil
}

// Import implements driver.Device: there is nothing to import.
func (d *heapDevice) Import(driver.Handle, driver.ImportOptions) (driver.Memory, error) {
	return nil, errNotShared
}

// Synchronize implements driver.Device.
func (d *heapDevice) Synchronize() error { return nil }

// Probe implements driver.Device: no kind of handle is supported.
func (d *heapDevice) Probe() []driver.Support { return nil }

// MemoryLimit implements driver.Device.
func (d *heapDevice) MemoryLimit() (bytes int64, why string) { return 0, "" }

// Close implements driver.Device.
func (d *heapDevice) Close() error { return nil }

var errNotShared = &driver.UnsupportedError{Feature: "sharing memory of the heap", Requires: "memory of driver/host or driver/cuda"}

// heapMemory is memory of a heapDevice. It implements driver.Mapped.
type heapMemory struct {
	exposed atomic.Bool
	device  *heapDevice
	bytes   int64

	mu     sync.RWMutex
	data   []byte // nil after Close, when there are no pins
	pins   int
	closed bool
}

// Data implements driver.Mapped. After Close, the bytes may belong to other memory.
func (m *heapMemory) Data() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil
	}
	m.exposed.Store(true)
	return m.data
}

// Exposed implements driver.Mapped.
func (m *heapMemory) Exposed() *atomic.Bool { return &m.exposed }

// Pin implements driver.Mapped.
func (m *heapMemory) Pin(bool) (data []byte, unpin func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, os.ErrClosed
	}
	m.pins++
	var once sync.Once
	return m.data, func() { once.Do(m.unpin) }, nil
}

func (m *heapMemory) unpin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pins--
	m.recycleLocked()
}

// recycleLocked returns the bytes to the pool if the memory is closed and has no pins.
func (m *heapMemory) recycleLocked() {
	if !m.closed || m.pins > 0 || m.data == nil {
		return
	}
	if m.bytes >= pooledFrom {
		whole := m.data[:cap(m.data)]
		m.device.pools[bits.Len(uint(cap(m.data)-1))].Put(&whole)
	}
	m.data = nil
}

// ReadAt implements driver.Memory.
func (m *heapMemory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return 0, os.ErrClosed
	}
	if off < 0 || off > m.bytes {
		return 0, fmt.Errorf("heap: %w: %d bytes at %d of %d", driver.ErrRange, len(p), off, m.bytes)
	}
	n := copy(p, m.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements driver.Memory.
func (m *heapMemory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return 0, os.ErrClosed
	}
	if off < 0 || off > m.bytes || int64(len(p)) > m.bytes-off {
		return 0, fmt.Errorf("heap: %w: %d bytes at %d of %d", driver.ErrRange, len(p), off, m.bytes)
	}
	return copy(m.data[off:], p), nil
}

// CopyFrom implements driver.Memory: a copy through the mapping is the only path.
func (m *heapMemory) CopyFrom(int64, driver.Memory, int64, int64) error { return errors.ErrUnsupported }

// Device implements driver.Memory.
func (m *heapMemory) Device() driver.Device { return m.device }

// Bytes implements driver.Memory.
func (m *heapMemory) Bytes() int64 { return m.bytes }

// Writable implements driver.Memory.
func (m *heapMemory) Writable() bool { return true }

// Describe implements driver.Memory.
func (m *heapMemory) Describe() (driver.Description, error) { return driver.Description{}, nil }

// Freeze implements driver.Memory.
func (m *heapMemory) Freeze() error { return errNotShared }

// Seal implements driver.Memory.
func (m *heapMemory) Seal() error {
	return &driver.UnsupportedError{Feature: "closing memory of the heap against all writers", Requires: "memory of driver/host"}
}

// Handle implements driver.Memory.
func (m *heapMemory) Handle() (driver.Handle, error) { return m.Export() }

// Export implements driver.Memory.
func (m *heapMemory) Export() (driver.Handle, error) { return driver.Handle{}, errNotShared }

// Close implements driver.Memory.
func (m *heapMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.recycleLocked()
	return nil
}
