package host

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

var _ driver.Slabber = (*Device)(nil)

// slab is a mapping that several memories use, one after another.
type slab struct {
	device   *Device
	backing  *backing
	span     span
	writable bool
	counted  bool // see exclusive
	cleanup  runtime.Cleanup

	mu     sync.Mutex
	use    *slabUse // nil without a user
	closed bool
	frozen bool // no other process can write it
}

// slabUse is the use of a slab by one memory. The cleanup of an unreachable memory receives it, so it does not refer to
// the memory.
type slabUse struct {
	slab     *slab
	bytes    int64
	done     func(clean bool)
	exposed  atomic.Bool
	exported atomic.Bool
	ended    atomic.Bool
}

// AllocSlab implements [driver.Slabber]. It returns the errors of Alloc.
func (d *Device) AllocSlab(bytes int64) (driver.Slab, error) {
	s, err := d.allocSlab(bytes, false)
	if err != nil {
		return nil, d.opError("alloc", err)
	}
	return s, nil
}

// allocSlab allocates a slab. If memory is short it makes pools free theirs and tries again.
func (d *Device) allocSlab(bytes int64, counted bool) (*slab, error) {
	b, err := d.allocBacking(bytes, counted)
	for err != nil && d.RetryAfterReclaim(bytes, err) {
		b, err = d.allocBacking(bytes, counted)
	}
	if err != nil {
		return nil, err
	}
	s := newSlab(d, b, span{bytes: bytes}, true)
	s.counted = counted
	return s, nil
}

// ImportSlab implements [driver.Slabber]. It returns the errors of Import.
func (d *Device) ImportSlab(h driver.Handle) (driver.Slab, error) {
	b, s, err := d.importBacking(h, false)
	if err != nil {
		return nil, d.opError("import", err)
	}
	return newSlab(d, b, s, false), nil
}

// newSlab takes ownership of b.
func newSlab(d *Device, b *backing, where span, writable bool) *slab {
	s := &slab{device: d, backing: b, span: where, writable: writable}
	s.cleanup = runtime.AddCleanup(s, func(b *backing) { forgotten.Add(b.reap) }, b)
	return s
}

// Bytes implements [driver.Slab].
func (s *slab) Bytes() int64 { return s.span.bytes }

// Use implements [driver.Slab].
func (s *slab) Use(bytes int64, done func(clean bool)) (driver.Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, s.device.opError("use", os.ErrClosed)
	case s.use != nil:
		return nil, s.device.opError("use", fmt.Errorf("%w: the slab has a user", driver.ErrBusy))
	case bytes < 0 || bytes > s.span.bytes:
		return nil, s.device.opError("use", fmt.Errorf("%w: %d bytes of a slab of %d", driver.ErrInvalid, bytes, s.span.bytes))
	}
	u := &slabUse{slab: s, bytes: bytes, done: done}
	s.use = u
	where := s.span
	where.bytes = bytes
	m := makeMemory(s.device, s.backing, where, s.writable)
	m.use, m.exposed = u, &u.exposed
	m.cleanup = runtime.AddCleanup(m, func(u *slabUse) { forgotten.Add(u.forget) }, u)
	return m, nil
}

// Export implements [driver.Slab].
func (s *slab) Export() (driver.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return driver.Handle{}, s.device.opError("export", os.ErrClosed)
	}
	if !s.frozen && s.writable {
		if err := freeze(s.backing.fd, true); err != nil {
			return driver.Handle{}, s.device.opError("freeze", err)
		}
		s.frozen = true
	}
	if s.counted { // a pool reuses the slab once no receiver of the handle holds it
		if h, ok := s.backing.exportCounted(s.device, s.span); ok {
			return h, nil
		}
		if s.use == nil {
			return driver.Handle{}, s.device.opError("export", os.ErrClosed)
		}
		s.use.exported.Store(true) // receivers cannot be counted, so the slab is not reused
	}
	h, err := s.backing.export(s.device, s.span)
	if err != nil {
		return driver.Handle{}, s.device.opError("export", err)
	}
	return h, nil
}

// Close implements [driver.Slab].
func (s *slab) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.cleanup.Stop()
	if s.use != nil {
		return nil
	}
	if err := s.releaseLocked(); err != nil {
		return s.device.opError("close", err)
	}
	return nil
}

// releaseLocked releases the resources of a closed slab. A mapping with an exposed slice stays.
func (s *slab) releaseLocked() error {
	if s.backing.exposed.Load() {
		return s.backing.closeFile()
	}
	return s.backing.release()
}

// end ends a use; only the first call counts.
func (u *slabUse) end(clean bool) {
	if u.ended.Swap(true) {
		return
	}
	s := u.slab
	s.mu.Lock()
	s.use = nil
	if s.closed {
		_ = s.releaseLocked() // Close has returned; unmapping whole mapped pages cannot fail
	}
	s.mu.Unlock()
	u.done(clean)
}

// forget ends the use of memory that became unreachable without Close. If a slice of it was exposed, the mapping stays
// forever.
func (u *slabUse) forget() {
	kept := u.exposed.Load()
	if kept {
		u.slab.backing.exposed.Store(true)
	}
	driver.ReportLeak(driver.Leak{Device: "host", Kind: "memory", Bytes: u.bytes, Kept: kept})
	u.end(false)
}

// SlabOf implements [driver.Slabber].
func (d *Device) SlabOf(mem driver.Memory) driver.Slab {
	if m, ok := mem.(*memory); ok && m.use != nil {
		return m.use.slab
	}
	return nil
}

// export returns a handle of a part of the memfd.
func (b *backing) export(d *Device, s span) (driver.Handle, error) {
	fd, err := unix.FcntlInt(uintptr(b.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return driver.Handle{}, refused("fcntl F_DUPFD_CLOEXEC", s.bytes, err)
	}
	return driver.Handle{
		Kind:   driver.Memfd,
		Device: d.info.UUID,
		Bytes:  s.bytes,
		Offset: s.fileOffset,
		File:   os.NewFile(uintptr(fd), "memfd:sharedtensor"),
	}, nil
}
