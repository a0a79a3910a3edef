//go:build unix

package trusted

import (
	"os"
	"syscall"
)

// ownerOf returns the user that owns a file.
func ownerOf(info os.FileInfo) (uid int, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
