package command

import (
	"os"
	"syscall"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// shm looks at /dev/shm. Tensors here are memfds, which its size does not bound; data loaders and other programs need
// it.
func shm() (finding, bool) {
	const check, path = "/dev/shm", "/dev/shm"
	if _, err := os.Stat(path); err != nil {
		return warn(check, "nothing to do for sharedtensor; mount a tmpfs there for programs that need it", "%v; memfds do without", err), true
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		return warn(check, "", "%v; memfds do without", os.NewSyscallError("statfs", err)), true
	}
	free, total := int64(fs.Bavail)*int64(fs.Bsize), int64(fs.Blocks)*int64(fs.Bsize)
	return ok(check, "%s of %s free; memfds are not bounded by it", term.FormatBytes(free), term.FormatBytes(total)), true
}
