package persist

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// newFile creates a memory file.
func newFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// allocate allocates the first n bytes of a file and leaves its size. It does nothing on a file system that cannot.
func allocate(f *os.File, n int64) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := error(unix.EINTR)
	if err := raw.Control(func(fd uintptr) {
		for errors.Is(failed, unix.EINTR) {
			failed = unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, 0, n)
		}
	}); err != nil {
		return err
	}
	if errors.Is(failed, unix.EOPNOTSUPP) || errors.Is(failed, unix.ENOSYS) {
		return nil
	}
	return os.NewSyscallError("fallocate", failed)
}

// lock takes the lock on a journal for this process, until the process ends or closes any descriptor of the file. Locks
// of open file descriptions would not do: the store holds the same description.
func lock(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	holder := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	var failed error
	err = raw.Control(func(fd uintptr) {
		wanted := holder
		if failed = unix.FcntlFlock(fd, unix.F_SETLK, &wanted); failed != nil {
			_ = unix.FcntlFlock(fd, unix.F_GETLK, &holder) // best effort: for the text
		}
	})
	switch {
	case err != nil:
		return err
	case failed == unix.EAGAIN || failed == unix.EACCES:
		return fmt.Errorf("%w: process %d uses the kept catalog", status.ErrInUse, holder.Pid)
	case failed != nil:
		return os.NewSyscallError("lock the journal", failed)
	}
	return nil
}

// unlock releases the lock of this process on a journal.
func unlock(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.FcntlFlock(fd, unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart})
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("unlock the journal", failed)
}

// Duplicate returns a second descriptor of a file. The caller owns it.
func Duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	if err := raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("duplicate a descriptor", failed)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
