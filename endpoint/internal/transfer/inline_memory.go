package transfer

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

// inlined is host memory whose bytes arrived within a frame. It belongs to this process and is read-only. Its first
// export copies it to frozen memory of the device, which other processes can map.
type inlined struct {
	device  driver.Device
	data    []byte
	exposed atomic.Bool

	mu     sync.Mutex
	closed bool
	shared driver.Memory // made by the first export
}

var _ driver.Mapped = (*inlined)(nil)

// inlineAlignment is the alignment of the bytes. Publishers of tensors use the same.
const inlineAlignment = 64

// aligned returns n zero bytes at a multiple of inlineAlignment. Go aligns an allocation like that if its size is a multiple.
func aligned(n int) []byte {
	size := max(n+inlineAlignment-1, inlineAlignment) / inlineAlignment * inlineAlignment
	return make([]byte, size)[:n:n]
}

// newInlined returns memory with a copy of content.
func newInlined(dev driver.Device, content []byte) *inlined {
	data := aligned(len(content))
	copy(data, content)
	return &inlined{device: dev, data: data}
}

func (m *inlined) Device() driver.Device { return m.device }
func (m *inlined) Bytes() int64          { return int64(len(m.data)) }

// Writable implements [driver.Memory].
func (m *inlined) Writable() bool { return false }

// check returns an error if the memory is closed.
func (m *inlined) check(use string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed(use)
	}
	return nil
}

// Data implements [driver.Mapped].
func (m *inlined) Data() []byte {
	if m.check("read") != nil {
		return nil
	}
	m.exposed.Store(true)
	return m.data
}

// Exposed implements [driver.Mapped].
func (m *inlined) Exposed() *atomic.Bool { return &m.exposed }

// Pin implements [driver.Mapped].
func (m *inlined) Pin(write bool) (data []byte, unpin func(), err error) {
	if err := m.check("pin"); err != nil {
		return nil, nil, err
	}
	if write {
		return nil, nil, fmt.Errorf("pin: %w", driver.ErrReadOnly)
	}
	return m.data, func() {}, nil
}

// ReadAt implements [driver.Memory].
func (m *inlined) ReadAt(p []byte, off int64) (int, error) {
	if err := m.check("read"); err != nil {
		return 0, err
	}
	switch {
	case off < 0:
		return 0, fmt.Errorf("read: %w: offset %d", driver.ErrRange, off)
	case len(p) == 0:
		return 0, nil
	case off >= m.Bytes():
		return 0, io.EOF
	}
	n := copy(p, m.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements [driver.Memory].
func (m *inlined) WriteAt([]byte, int64) (int, error) {
	if err := m.check("write"); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("write: %w", driver.ErrReadOnly)
}

// CopyFrom implements [driver.Memory].
func (m *inlined) CopyFrom(int64, driver.Memory, int64, int64) error {
	return &driver.UnsupportedError{Feature: "a copy inside the device", Requires: "memory of a GPU"}
}

// Freeze implements [driver.Memory]. The memory has no writers.
func (m *inlined) Freeze() error { return m.check("freeze") }

// Seal implements [driver.Memory]. It fails as for all memory of other processes.
func (m *inlined) Seal() error {
	if err := m.check("seal"); err != nil {
		return err
	}
	return fmt.Errorf("seal: %w", driver.ErrReadOnly)
}

// Describe implements [driver.Memory].
func (m *inlined) Describe() (driver.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return driver.Description{}, errClosed("describe")
	case m.shared != nil:
		return m.shared.Describe()
	}
	return driver.Description{Freezable: true, Frozen: true}, nil
}

// Handle implements [driver.Memory].
func (m *inlined) Handle() (driver.Handle, error) {
	shared, err := m.share()
	if err != nil {
		return driver.Handle{}, err
	}
	return shared.Handle()
}

// Export implements [driver.Memory].
func (m *inlined) Export() (driver.Handle, error) {
	shared, err := m.share()
	if err != nil {
		return driver.Handle{}, err
	}
	return shared.Export()
}

// share returns the copy that other processes can map.
func (m *inlined) share() (driver.Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errClosed("export")
	}
	if m.shared != nil {
		return m.shared, nil
	}
	shared, err := m.device.Alloc(m.Bytes())
	if err != nil {
		return nil, err
	}
	if _, err = shared.WriteAt(m.data, 0); err == nil {
		err = driver.Freeze(shared)
	}
	if err != nil {
		return nil, errors.Join(err, shared.Close())
	}
	m.shared = shared
	return shared, nil
}

// Close implements [driver.Memory].
func (m *inlined) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	if m.shared == nil {
		return nil
	}
	return m.shared.Close()
}
