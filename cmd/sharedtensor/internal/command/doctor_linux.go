package command

import (
	"os"
	"syscall"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// shm checks /dev/shm. This module uses memfds, which its size does not limit, but data loaders and other programs need
// it.
func shm() (finding, bool) {
	const check, path = "/dev/shm", "/dev/shm"
	if _, err := os.Stat(path); err != nil {
		return warn(check, "sharedtensor does not need it; mount a tmpfs there for programs that do", "%v; memfds do not need it", err), true
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		return warn(check, "", "%v; memfds do not need it", os.NewSyscallError("statfs", err)), true
	}
	free, total := int64(fs.Bavail)*int64(fs.Bsize), int64(fs.Blocks)*int64(fs.Bsize)
	return ok(check, "%s of %s free; it does not limit memfds", term.FormatBytes(free), term.FormatBytes(total)), true
}
