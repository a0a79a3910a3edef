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

// The kernel knows whether anybody else still has a memfd. It counts the times that a file was opened, for reading and
// for writing, and each counts until the last descriptor made of it and the last mapping of that are gone, in whichever
// process: those passed on are among them, those in messages that nobody has read, and those of a process that was
// killed until the kernel has buried it. It grants a write lease (fcntl F_SETLEASE) on a file that is open once. So
// memory that is to come back is opened anew by its owner, since what memfd_create opens is not counted; others get
// read-only descriptors that were opened for them alone ([memory.exportCounted]); and where the lease is granted,
// nobody has one.
//
// What is not counted is a descriptor that cannot be read (O_PATH), by which the file could be opened again later. Its
// mode keeps other users from that. A process of the same user can look into its owner's memory by other means too.

var _ driver.Reusable = (*memory)(nil)

// openAgain opens a descriptor's file anew.
func openAgain(fd, flags int) (int, error) {
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		again, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
	}
	return again, err
}

// count puts a descriptor of the same memfd that the kernel counts in the place of fd.
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

// exclusive reports whether nobody but this descriptor, which was counted, and its own mappings has the memfd.
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

// exportCounted is the export of memory that is to come back: a descriptor that was opened for reading, whose copies
// and mappings the kernel counts. It is for frozen memory: of other memory the receiver may want to write, and what it
// writes with is not told from the owner's own descriptor, so that such memory does not come back. ok is false for
// that.
func (m *memory) exportCounted() (h driver.Handle, ok bool) {
	seals, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&writeSeals == 0 {
		return driver.Handle{}, false
	}
	fd, err := openAgain(m.backing.fd, unix.O_RDONLY)
	if err != nil {
		return driver.Handle{}, false
	}
	return driver.Handle{
		Kind:   driver.Memfd,
		Device: m.device.info.UUID,
		Bytes:  m.span.bytes,
		Offset: m.span.fileOffset,
		File:   os.NewFile(uintptr(fd), "memfd:sharedtensor"),
	}, true
}

// Reusable implements [driver.Reusable]. Others know memory of a pool by its descriptor, which cannot be written.
func (m *memory) Reusable() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.use != nil || m.closed {
		return true
	}
	flags, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GETFL, 0)
	return err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY
}

// canCount reports why memory cannot come back on this system; nil where it can. It is tried once.
var canCount = sync.OnceValue(func() error {
	err := tryCounting()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", &driver.UnsupportedError{
		Feature: "memory that is used again after others had it", Requires: "/proc, leases on files of memory (F_SETLEASE), and that the sandbox lets both through",
	}, err)
})

// tryCounting holds what the kernel says of a page against what is known of it.
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

// expectExclusive is an error where the kernel does not say what is true.
func expectExclusive(fd int, want bool) error {
	got, err := exclusive(fd)
	if err == nil && got != want {
		err = fmt.Errorf("the kernel says %v where %v is true", got, want)
	}
	return err
}
