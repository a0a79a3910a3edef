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

// span is where a memory's bytes lie.
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
	place   atomic.Pointer[driver.Place] // once it was asked for

	// mu is read-locked while the mapping or the descriptor is in use for a short time, so that Close and Seal wait.
	// Pins are for what may take long: Close leaves the mapping to the last of them, and Seal refuses while one of them
	// writes. They are counted with mu read-locked, so that whoever has it locked sees all of them.
	mu       sync.RWMutex
	closed   bool
	writable bool
	backing  *backing
	use      *slabUse     // of the slab that the memory is of; nil where it has the backing for itself
	exposed  *atomic.Bool // see backing
	data     []byte
	pins     atomic.Int64
	writers  atomic.Int64
}

var (
	_ driver.Mapped    = (*memory)(nil)
	_ driver.Exposer   = (*memory)(nil)
	_ driver.Sparse    = (*memory)(nil)
	_ driver.Freezer   = (*memory)(nil)
	_ driver.Describer = (*memory)(nil)
	_ driver.Loader    = (*memory)(nil)
)

// newMemory takes b.
func newMemory(d *Device, b *backing, s span, writable bool) *memory {
	m := makeMemory(d, b, s, writable)
	m.cleanup = runtime.AddCleanup(m, func(b *backing) { forgotten.Add(b.reap) }, b)
	return m
}

// makeMemory is memory without its cleanup.
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

// Exposed implements [driver.Exposer].
func (m *memory) Exposed() *atomic.Bool { return m.exposed }

// Pin implements [driver.Mapped].
func (m *memory) Pin(write bool) (data []byte, unpin func(), err error) {
	if err := m.pin(write); err != nil {
		return nil, nil, m.device.opError("pin", err)
	}
	return m.data, func() { m.unpin(write) }, nil
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

// unpin also gives a closed memory back where it is the last.
func (m *memory) unpin(write bool) {
	if write {
		m.writers.Add(-1)
	}
	if m.pins.Add(-1) > 0 || !m.isClosed() {
		return
	}
	_ = m.release() // Close has answered; unmapping whole pages that are mapped does not fail
}

// release gives up the mapping of closed memory without pins. A second call is nil.
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
		if h, ok := m.exportCounted(); ok {
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

// Describe implements [driver.Describer].
func (m *memory) Describe() (driver.Handle, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return driver.Handle{}, m.device.opError("describe", os.ErrClosed)
	}
	return driver.Handle{Kind: driver.Memfd, Device: m.device.info.UUID, Bytes: m.span.bytes, Offset: m.span.fileOffset}, nil
}

// Freeze implements [driver.Freezer]. Memory that is itself mapped read-only cannot be frozen: that is its owner's
// decision. Before Linux 5.1 it fails with an error that answers for [errors.ErrUnsupported].
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

// Frozen implements [driver.Freezer].
func (m *memory) Frozen() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return false
	}
	seals, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&writeSeals != 0
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

// Close implements [driver.Memory]. It waits for short copies that are under way. What is pinned stays mapped until it
// is unpinned, and a load stops at its next piece.
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
