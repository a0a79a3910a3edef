package cuda

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// exportedFile makes a file of a descriptor that the driver made. Whether the driver made it close-on-exec is its
// secret, so it is set here, with fork held off: no program started meanwhile inherits it.
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
