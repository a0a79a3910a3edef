package host

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

const writeSeals = unix.F_SEAL_WRITE | unix.F_SEAL_FUTURE_WRITE

func (d *Device) importHandle(h driver.Handle, opts driver.ImportOptions) (*memory, error) {
	b, s, err := d.importBacking(h, opts.Writable)
	if err != nil {
		return nil, err
	}
	return newMemory(d, b, s, opts.Writable), nil
}

// importBacking maps the memory of a handle.
func (d *Device) importBacking(h driver.Handle, writable bool) (b *backing, s span, err error) {
	if d.closed.Load() {
		return nil, span{}, os.ErrClosed
	}
	if err := d.checkHandle(h); err != nil {
		return nil, span{}, err
	}
	conn, err := h.File.SyscallConn()
	if err != nil {
		return nil, span{}, err
	}
	// Control keeps the file open during a concurrent Close.
	if controlErr := conn.Control(func(fd uintptr) { b, s, err = d.importFile(int(fd), h, writable) }); controlErr != nil {
		return nil, span{}, fmt.Errorf("%w: %w", driver.ErrHandle, controlErr)
	}
	return b, s, err
}

// checkHandle checks what does not require the kernel.
func (d *Device) checkHandle(h driver.Handle) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if h.Kind != driver.Memfd {
		return &driver.UnsupportedError{
			Feature:  fmt.Sprintf("handle kind %q on host memory", string(h.Kind)),
			Requires: "a handle of kind memfd",
		}
	}
	if h.Device != d.info.UUID {
		return fmt.Errorf("%w: it is of device %s, this host's memory is %s", driver.ErrHandle, h.Device, d.info.UUID)
	}
	return nil
}

func (d *Device) importFile(fd int, h driver.Handle, writable bool) (*backing, span, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, span{}, fmt.Errorf("%w: the descriptor is no memfd: %w", driver.ErrHandle, os.NewSyscallError("fcntl F_GET_SEALS", err))
	}
	if seals&sizeSeals != sizeSeals {
		return nil, span{}, fmt.Errorf("%w: the memfd is not sealed against shrinking and growing", driver.ErrHandle)
	}
	if writable && seals&writeSeals != 0 {
		return nil, span{}, fmt.Errorf("%w: the memory is frozen", driver.ErrReadOnly)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, span{}, os.NewSyscallError("fstat", err)
	}
	if h.Offset+h.Bytes > st.Size { // Validate has checked that the sum does not overflow
		return nil, span{}, fmt.Errorf("%w: %d bytes at offset %d of a memfd of %d bytes", driver.ErrHandle, h.Bytes, h.Offset, st.Size)
	}
	return mapRange(fd, &st, seals, h, writable)
}

// mapRange maps the pages of the handle's bytes and duplicates the descriptor. The caller owns the result.
func mapRange(fd int, st *unix.Stat_t, seals int, h driver.Handle, writable bool) (*backing, span, error) {
	// On hugetlbfs the block size is the page size, and only whole pages can be mapped.
	page := int64(os.Getpagesize())
	if b := int64(st.Blksize); b > page && b&(b-1) == 0 {
		page = b
	}
	offset := h.Offset
	if h.Bytes == 0 {
		offset = 0 // the range may begin at the very end, which cannot be mapped
	}
	start := offset &^ (page - 1)
	length, ok := roundUp(max(offset-start+h.Bytes, 1), page)
	if !ok || length > math.MaxInt {
		return nil, span{}, fmt.Errorf("%w: %d bytes are more than this system can address", driver.ErrOutOfMemory, h.Bytes)
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, span{}, refused("fcntl F_DUPFD_CLOEXEC", length, err)
	}
	mapping, err := unix.Mmap(own, start, int(length), prot, unix.MAP_SHARED)
	if err == unix.EPERM && seals&unix.F_SEAL_WRITE != 0 && !writable {
		// Before Linux 6.7. These bytes are no longer written, so a private mapping has the same content. A debugger
		// could change only what this process sees.
		mapping, err = unix.Mmap(own, start, int(length), prot, unix.MAP_PRIVATE)
	}
	if err != nil {
		_ = unix.Close(own) // best effort: a duplicate, and err is returned
		if writable && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
			return nil, span{}, fmt.Errorf("%w: the descriptor does not allow writing: %w", driver.ErrReadOnly, os.NewSyscallError("mmap", err))
		}
		return nil, span{}, refused("mmap", length, err)
	}
	b := &backing{mapping: mapping, fd: own, bytes: h.Bytes}
	b.fresh.off.Store(true)
	return b, span{bytes: h.Bytes, fileOffset: h.Offset, skip: int(offset - start)}, nil
}
