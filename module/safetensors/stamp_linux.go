package safetensors

import (
	"fmt"
	"io/fs"
	"syscall"
)

// stampOf returns the device, the inode and the times of a file. A program can set the time of modification, but not the
// time of change.
func stampOf(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime().String()
	}
	return fmt.Sprintf("%d %d %d.%d %d.%d", st.Dev, st.Ino, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
}
