package gateway

import (
	"fmt"
	"io/fs"
	"syscall"
)

// identityOfFile distinguishes files of the same size and time: their device, inode, owner and time of change, which a
// writer cannot set.
func identityOfFile(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(stat.Dev, stat.Ino, stat.Uid, stat.Gid, stat.Ctim)
}
