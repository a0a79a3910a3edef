package host

import (
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/internal/reaper"
)

// backing holds the resources of a memory. The cleanup of an unreachable memory receives it, so it does not refer to
// the memory.
type backing struct {
	mapping []byte // whole pages; nil after it was unmapped
	fd      int
	bytes   int64
	// exposed: slices of the mapping may exist that the garbage collector does not see.
	exposed atomic.Bool
	// complete: every byte has a page that cannot be removed.
	complete atomic.Bool
	fresh    freshMarks
}

// release unmaps and closes. A second call returns nil.
func (b *backing) release() error {
	if b.mapping == nil {
		return nil
	}
	err := os.NewSyscallError("munmap", unix.Munmap(b.mapping))
	b.mapping = nil
	if closeErr := b.closeFile(); err == nil {
		err = closeErr
	}
	return err
}

func (b *backing) closeFile() error {
	fd := b.fd
	b.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// forgotten queues memories that became unreachable without Close. Unmapping many pages takes time.
var forgotten reaper.Queue

// reap releases the resources of an unreachable memory. An exposed address must never become another memory's, because
// slices would access it. An exposed mapping therefore stays with its pages and is counted; only the descriptor is
// closed.
func (b *backing) reap() {
	kept := b.exposed.Load()
	if kept {
		_ = b.closeFile() // best effort
	} else {
		_ = b.release()
	}
	driver.ReportLeak(driver.Leak{Device: "host", Kind: "memory", Bytes: b.bytes, Kept: kept})
}

// allocated returns the allocated bytes of the whole memfd, and its size.
func (b *backing) allocated() (allocated, size int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		return 0, 0, os.NewSyscallError("fstat", err)
	}
	return min(st.Blocks*512, st.Size), st.Size, nil
}

// pread reads without allocating missing pages.
func (b *backing) pread(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(b.fd, p, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return os.NewSyscallError("pread", err)
		case n == 0:
			return io.ErrUnexpectedEOF // the size is sealed
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// hasHoles reports whether pages of the memfd are missing, which a touch would allocate. m.mu is read-locked. Memory
// that others can write may lose pages again; frozen memory cannot.
func (m *memory) hasHoles() bool {
	if m.backing.complete.Load() {
		return false
	}
	allocated, size, err := m.backing.allocated()
	if err != nil || allocated < size {
		return true
	}
	if seals, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GET_SEALS, 0); err == nil && seals&writeSeals != 0 {
		m.backing.complete.Store(true)
	}
	return false
}
