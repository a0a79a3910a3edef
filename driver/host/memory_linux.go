package host

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// span is the place of a memory's bytes.
type span struct {
	bytes      int64
	fileOffset int64 // from the beginning of the memfd
	skip       int   // from the beginning of the mapping
}

// memory is one mapping of a memfd.
type memory struct {
	device  *Device
	span    span
	cleanup runtime.Cleanup
	facts   atomic.Pointer[facts] // set on first use

	// mu is read-locked during short uses of the mapping or the descriptor, so that Close and Seal wait. Pins are for
	// long uses: Close leaves unmapping to the last pin, and Seal refuses while a pin writes. Pins are counted with mu
	// read-locked, so the holder of the write lock sees all of them.
	mu       sync.RWMutex
	closed   bool
	writable bool
	backing  *backing
	use      *slabUse     // of the memory's slab; nil if the memory has its own backing
	exposed  *atomic.Bool // see backing
	data     []byte
	pins     atomic.Int64
	writers  atomic.Int64
}

var (
	_ driver.Mapped = (*memory)(nil)
	_ driver.Loader = (*memory)(nil)
)

// newMemory takes ownership of b.
func newMemory(d *Device, b *backing, s span, writable bool) *memory {
	m := makeMemory(d, b, s, writable)
	m.cleanup = runtime.AddCleanup(m, func(b *backing) { forgotten.Add(b.reap) }, b)
	return m
}

// makeMemory returns memory without its cleanup.
func makeMemory(d *Device, b *backing, s span, writable bool) *memory {
	end := s.skip + int(s.bytes)
	return &memory{device: d, span: s, writable: writable, backing: b, exposed: &b.exposed, data: b.mapping[s.skip:end:end]}
}

func (m *memory) Device() driver.Device { return m.device }
func (m *memory) Bytes() int64          { return m.span.bytes }

// Writable implements [driver.Memory].
func (m *memory) Writable() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.writable
}

// Data implements [driver.Mapped].
func (m *memory) Data() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil
	}
	m.exposed.Store(true)
	return m.data
}

// Exposed implements [driver.Mapped].
func (m *memory) Exposed() *atomic.Bool { return m.exposed }

// Pin implements [driver.Mapped].
func (m *memory) Pin(write bool) (data []byte, unpin func(), err error) {
	if err := m.pin(write); err != nil {
		return nil, nil, m.device.opError("pin", err)
	}
	var once sync.Once
	return m.data, func() { once.Do(func() { m.unpin(write) }) }, nil
}

func (m *memory) pin(write bool) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch {
	case m.closed:
		return os.ErrClosed
	case write && !m.writable:
		return driver.ErrReadOnly
	}
	m.pins.Add(1)
	if write {
		m.writers.Add(1)
	}
	return nil
}

// unpin releases closed memory if it is the last pin.
func (m *memory) unpin(write bool) {
	if write {
		m.writers.Add(-1)
	}
	if m.pins.Add(-1) > 0 || !m.isClosed() {
		return
	}
	_ = m.release() // Close has returned; unmapping whole mapped pages cannot fail
}

// release unmaps closed memory without pins. A second call returns nil.
func (m *memory) release() error {
	m.mu.Lock()
	if m.use == nil {
		defer m.mu.Unlock()
		return m.backing.release()
	}
	clean := !m.use.exported.Load() && m.writable == m.use.slab.writable
	m.mu.Unlock()
	m.use.end(clean)
	return nil
}

func (m *memory) isClosed() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.closed
}

// ReadAt implements [driver.Memory].
func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch {
	case m.closed:
		return 0, m.device.opError("read", os.ErrClosed)
	case off < 0:
		return 0, m.device.opError("read", fmt.Errorf("%w: offset %d", driver.ErrRange, off))
	case off >= m.span.bytes && len(p) > 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n := int(min(int64(len(p)), m.span.bytes-off))
	if m.hasHoles() {
		if err := m.backing.pread(p[:n], m.span.fileOffset+off); err != nil {
			return 0, m.device.opError("read", err)
		}
	} else {
		copy(p, m.data[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements [driver.Memory].
func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.checkWriteLocked(off, int64(len(p))); err != nil {
		return 0, m.device.opError("write", err)
	}
	written, err := m.backing.writeAt(p, m.data[off:], m.span.fileOffset+off)
	if err != nil {
		return written, m.device.opError("write", refused("pwrite", m.span.bytes, err))
	}
	return written, nil
}

// CopyFrom implements [driver.Memory]. Host memory is copied through its mapping, so there is no separate path.
func (m *memory) CopyFrom(int64, driver.Memory, int64, int64) error {
	return m.device.opError("copy", errNoDeviceCopy)
}

var errNoDeviceCopy = &driver.UnsupportedError{Feature: "a copy inside the device", Requires: "memory of a GPU"}

func (m *memory) checkWriteLocked(off, n int64) error {
	switch {
	case m.closed:
		return os.ErrClosed
	case !m.writable:
		return driver.ErrReadOnly
	case off < 0 || n < 0 || off > m.span.bytes || n > m.span.bytes-off:
		return fmt.Errorf("%w: %d bytes at offset %d of %d", driver.ErrRange, n, off, m.span.bytes)
	}
	return nil
}

// Export implements [driver.Memory]. The handle's descriptor is a duplicate, owned by the caller.
func (m *memory) Export() (driver.Handle, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return driver.Handle{}, m.device.opError("export", os.ErrClosed)
	}
	if m.use != nil && m.use.slab.counted {
		if h, ok := m.backing.exportCounted(m.device, m.span); ok {
			return h, nil
		}
	}
	if m.use != nil {
		m.use.exported.Store(true)
	}
	h, err := m.backing.export(m.device, m.span)
	if err != nil {
		return driver.Handle{}, m.device.opError("export", err)
	}
	return h, nil
}

// Handle implements [driver.Memory].
func (m *memory) Handle() (driver.Handle, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return driver.Handle{}, m.device.opError("describe", os.ErrClosed)
	}
	return driver.Handle{Kind: driver.Memfd, Device: m.device.info.UUID, Bytes: m.span.bytes, Offset: m.span.fileOffset}, nil
}

// Freeze implements [driver.Memory]. Memory that is mapped read-only cannot be frozen, because its owner decides.
// Before Linux 5.1 it returns an error that matches [errors.ErrUnsupported].
func (m *memory) Freeze() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return m.device.opError("freeze", os.ErrClosed)
	}
	if err := freeze(m.backing.fd, m.writable); err != nil {
		return m.device.opError("freeze", err)
	}
	return nil
}

func freeze(fd int, writable bool) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return os.NewSyscallError("fcntl F_GET_SEALS", err)
	case seals&writeSeals != 0:
		return nil
	case !writable:
		return driver.ErrReadOnly
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	switch err {
	case nil:
		return nil
	case unix.EINVAL:
		return &driver.UnsupportedError{Feature: "closing memory against new writers", Requires: "Linux 5.1 or newer"}
	case unix.EPERM: // another thread or process was first
		if now, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil && now&writeSeals != 0 {
			return nil
		}
	}
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}

// Close implements [driver.Memory]. It waits for short copies in progress. Pinned memory stays mapped until it is
// unpinned, and a load stops at its next piece.
func (m *memory) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.cleanup.Stop()
	pinned := m.pins.Load() > 0
	m.mu.Unlock()
	if pinned {
		return nil
	}
	if err := m.release(); err != nil {
		return m.device.opError("close", err)
	}
	return nil
}
