package cuda

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// exportedFile makes a file of a descriptor that the driver created. Whether the driver sets close-on-exec is not
// documented, so exportedFile sets it while it prevents forks: programs started concurrently do not inherit the
// descriptor.
func exportedFile(export func(fd *int32) error) (*os.File, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd := int32(-1)
	if err := export(&fd); err != nil {
		return nil, err
	}
	unix.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "cuda-fd"), nil
}

// duplicateFile returns a close-on-exec duplicate of the descriptor. If the file is closed, the error is
// [driver.ErrHandle].
func duplicateFile(f *os.File) (*os.File, error) {
	conn, err := f.SyscallConn() // Fd would make the descriptor blocking
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrHandle, err)
	}
	fd := -1
	var dupErr error
	err = conn.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrHandle, err)
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
