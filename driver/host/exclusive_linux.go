package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// The kernel knows whether another process holds a memfd. It counts the open file descriptions for reading and for
// writing. Each one counts until its last descriptor and its last mapping are gone in every process: including passed
// descriptors, those in unread messages, and those of a killed process until its exit completes. The kernel grants a
// write lease (fcntl F_SETLEASE) on a file that is open once. So the owner of reusable memory opens it again, because
// the description of memfd_create is not counted. Others get read-only descriptors from a separate open
// ([backing.exportCounted]). If the lease is granted, no other process holds one.
//
// Descriptors opened with O_PATH are not counted, and the file could be opened again through them. The file's mode
// prevents that for other users. A process of the same user can inspect its owner's memory by other means too.

// openAgain opens a descriptor's file again.
func openAgain(fd, flags int) (int, error) {
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		again, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
	}
	return again, err
}

// count replaces fd by a descriptor of the same memfd that the kernel counts.
func count(fd *int) error {
	if err := unix.Fchmod(*fd, 0o600); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	counted, err := openAgain(*fd, unix.O_RDWR)
	if err != nil {
		return os.NewSyscallError("open /proc/self/fd", err)
	}
	err = unix.Close(*fd)
	*fd = counted
	return os.NewSyscallError("close", err)
}

// exclusive reports whether only this descriptor, which was counted, and its mappings hold the memfd.
func exclusive(fd int) (bool, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err == unix.EAGAIN {
		return false, nil
	} else if err != nil {
		return false, os.NewSyscallError("fcntl F_SETLEASE", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		return false, os.NewSyscallError("fcntl F_SETLEASE", err)
	}
	return true, nil
}

// exportCounted exports reusable memory: a descriptor opened for reading, whose copies and mappings the kernel counts.
// It requires frozen memory. A receiver of other memory may need to write, and its writable descriptor could not be
// distinguished from the owner's, so such memory is not reusable; ok is then false.
func (b *backing) exportCounted(d *Device, s span) (h driver.Handle, ok bool) {
	seals, err := unix.FcntlInt(uintptr(b.fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&writeSeals == 0 {
		return driver.Handle{}, false
	}
	fd, err := openAgain(b.fd, unix.O_RDONLY)
	if err != nil {
		return driver.Handle{}, false
	}
	return driver.Handle{
		Kind:   driver.Memfd,
		Device: d.info.UUID,
		Bytes:  s.bytes,
		Offset: s.fileOffset,
		File:   os.NewFile(uintptr(fd), "memfd:sharedtensor"),
	}, true
}

// canCount returns nil if memory can be reused on this system, otherwise the reason. It is tested once.
var canCount = sync.OnceValue(func() error {
	err := tryCounting()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", &driver.UnsupportedError{
		Feature: "memory that is used again after others had it", Requires: "/proc, leases on files of memory (F_SETLEASE), and that the sandbox lets both through",
	}, err)
})

// tryCounting compares the kernel's answers about a page with the known state.
func tryCounting() (err error) {
	page := os.Getpagesize()
	fd, err := createMemfd(int64(page))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := count(&fd); err != nil {
		return err
	}
	own, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(own)) }()
	if err := expectExclusive(fd, true); err != nil {
		return err
	}
	other, err := openAgain(fd, unix.O_RDONLY)
	if err != nil {
		return os.NewSyscallError("open /proc/self/fd", err)
	}
	theirs, mapErr := unix.Mmap(other, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	opened := expectExclusive(fd, false)
	if err := errors.Join(mapErr, opened, unix.Close(other)); err != nil {
		return err
	}
	mapped := expectExclusive(fd, false)
	if err := errors.Join(mapped, unix.Munmap(theirs)); err != nil {
		return err
	}
	return expectExclusive(fd, true)
}

// expectExclusive returns an error if the kernel's answer is not want.
func expectExclusive(fd int, want bool) error {
	got, err := exclusive(fd)
	if err == nil && got != want {
		err = fmt.Errorf("the kernel says %v where %v is true", got, want)
	}
	return err
}
