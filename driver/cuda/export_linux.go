package cuda

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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
