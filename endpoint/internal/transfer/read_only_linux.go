package transfer

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
)

// RestrictToReading replaces descriptors of host memory by ones that are opened read-only. Memory that a client passed
// may have arrived by a descriptor that can be written, and a duplicate of that lets its receiver write too.
func (out *Export) RestrictToReading() error {
	for _, h := range out.Handles {
		if h.File < 0 || driver.HandleKind(h.Kind) != driver.Memfd {
			continue
		}
		f := out.Files[h.File]
		fd := int(f.Fd())
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFL, 0)
		if errno != 0 {
			return os.NewSyscallError("fcntl F_GETFL", errno)
		}
		if flags&syscall.O_ACCMODE == syscall.O_RDONLY {
			continue
		}
		again, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			return fmt.Errorf("open the memory read-only: %w", err)
		}
		f.Close()
		out.Files[h.File] = again
	}
	return nil
}
