//go:build unix

package jitcache

import (
	"fmt"
	"os"
	"syscall"

	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// openNoFollow opens a file for reading. It fails if the last element of path is a symbolic link, and does not wait for the
// writer of a named pipe.
func openNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// checkOwner returns ErrUnsafe unless the user of this process owns the file and no other user can write it.
func checkOwner(info os.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("mode %#o: %w", mode, ErrUnsafe)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && !userns.Self(s.Uid) {
		return fmt.Errorf("owned by uid %d: %w", s.Uid, ErrUnsafe)
	}
	return nil
}
