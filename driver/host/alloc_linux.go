package host

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// reservePiece limits one call that allocates pages. Older kernels abort and undo such a call on a signal, so a
	// large one might never finish in a program with a profiler or a preempting scheduler.
	reservePiece = 64 << 20
	// checkedBytes is the most that is allocated without a comparison with the available memory, in one or several
	// allocations. Comparing each small one costs too much.
	checkedBytes = 16 << 20
	// spareBytes is the available memory that small allocations leave to the process itself. A control group ends the
	// process, rather than refuse memory, if it needs more.
	spareBytes = 8 << 20
	// creditShare is the divisor of the available memory that may be allocated before the next comparison.
	creditShare = 8

	sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
)

func (d *Device) alloc(bytes int64) (*memory, error) {
	b, err := d.allocBacking(bytes, false)
	if err != nil {
		return nil, err
	}
	return newMemory(d, b, span{bytes: bytes}, true), nil
}

// allocBacking allocates the resources of an allocation. counted memory has a descriptor that [exclusive] supports.
func (d *Device) allocBacking(bytes int64, counted bool) (_ *backing, err error) {
	if d.closed.Load() {
		return nil, os.ErrClosed
	}
	size, err := d.checkSize(bytes)
	if err != nil {
		return nil, err
	}
	fd, err := createMemfd(size)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd) // best effort: nothing was written, and err is returned
		}
	}()
	if counted {
		if err := count(&fd); err != nil {
			return nil, err
		}
	}
	mapping, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, refused("mmap", size, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Munmap(mapping) // whole mapped pages: it cannot fail
		}
	}()
	if size >= hugePageBytes {
		// Advice: a kernel without huge pages refuses it, which only costs speed.
		_ = unix.Madvise(mapping, unix.MADV_HUGEPAGE)
	}
	if !d.options.lazy {
		if err := d.reserve(fd, mapping); err != nil {
			return nil, refused("fallocate", size, err)
		}
	}
	b := &backing{mapping: mapping, fd: fd, bytes: bytes}
	b.complete.Store(!d.options.lazy)
	return b, nil
}

// checkSize returns the size of the memfd for an allocation, or the reason why it cannot be allocated. It runs before
// anything is created.
func (d *Device) checkSize(bytes int64) (int64, error) {
	if bytes < 0 {
		return 0, fmt.Errorf("%w: %d bytes", driver.ErrInvalid, bytes)
	}
	size, ok := roundUp(max(bytes, 1), d.info.Granularity)
	if !ok || size > math.MaxInt {
		return 0, fmt.Errorf("%w: %d bytes are more than this system can address", driver.ErrOutOfMemory, bytes)
	}
	// A file over this limit raises SIGXFSZ, which ends a Go program, so it must not be requested.
	if limit := fileSizeLimit(); size > limit {
		return 0, fmt.Errorf("%w: %d bytes are more than the %d that this process may give a file (RLIMIT_FSIZE, ulimit -f)",
			driver.ErrOutOfMemory, size, limit)
	}
	return size, d.checkAvailable(size)
}

// checkAvailable compares an allocation with the available memory, if the allocations since the last comparison have used up
// their credit.
func (d *Device) checkAvailable(size int64) error {
	if size < checkedBytes && d.credit.Add(-size) >= 0 {
		return nil
	}
	available, source := d.system.available()
	spare := int64(0)
	if size < checkedBytes {
		spare = spareBytes
	}
	if size > available-spare {
		d.credit.Store(0)
		return fmt.Errorf("%w: %d bytes asked for, %d available (%s)", driver.ErrOutOfMemory, size, max(available-spare, 0), source)
	}
	d.credit.Store(min((available-size)/creditShare, checkedBytes))
	return nil
}

// createMemfd returns an owned descriptor of a memfd of the given size, sealed against any other.
func createMemfd(size int64) (fd int, err error) {
	fd, err = memfdCreate()
	if err != nil {
		return -1, refused("memfd_create", size, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd) // best effort: nothing was written, and err is returned
		}
	}()
	if err := unix.Ftruncate(fd, size); err != nil {
		return -1, refused("ftruncate", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals); err != nil {
		return -1, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return fd, nil
}

func memfdCreate() (int, error) {
	const name, flags = "sharedtensor", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

// reserve allocates the pages of a new memfd.
func (d *Device) reserve(fd int, mapping []byte) error {
	if d.huge == hugeAdvise && len(mapping) >= hugePageBytes {
		// fallocate ignores the mapping's advice: only touching the mapping allocates a huge page.
		err := populate(mapping)
		if !errors.Is(err, unix.EINVAL) { // before Linux 5.14
			return err
		}
	}
	for off := int64(0); off < int64(len(mapping)); {
		n := min(reservePiece, int64(len(mapping))-off)
		switch err := unix.Fallocate(fd, 0, off, n); err {
		case nil:
			off += n
		case unix.EINTR:
		default:
			return err
		}
	}
	return nil
}

func populate(mapping []byte) error {
	for len(mapping) > 0 {
		n := min(reservePiece, len(mapping))
		switch err := unix.Madvise(mapping[:n], unix.MADV_POPULATE_WRITE); err {
		case nil:
			mapping = mapping[n:]
		case unix.EINTR, unix.EAGAIN:
		case unix.EFAULT: // the kernel's result where a touch would raise SIGBUS
			return unix.ENOMEM
		default:
			return err
		}
	}
	return nil
}

// refused converts the kernel's errno for memory of the given size.
func refused(call string, size int64, err error) error {
	cause := os.NewSyscallError(call, err)
	switch {
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EFBIG):
		return fmt.Errorf("%w: %d bytes: %w", driver.ErrOutOfMemory, size, cause)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("no descriptor left in this process (RLIMIT_NOFILE, ulimit -n): %w", cause)
	case errors.Is(err, unix.ENFILE):
		return fmt.Errorf("no descriptor left on this host (fs.file-max): %w", cause)
	case errors.Is(err, unix.ENOSYS):
		return &driver.UnsupportedError{Feature: call, Requires: "Linux 3.17 or newer, and a sandbox that lets the call through"}
	}
	return cause
}

func fileSizeLimit() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &r) != nil || r.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(r.Cur)
}
