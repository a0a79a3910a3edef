//go:build unix

package natslink

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockStore locks the folder against a second server. NATS itself would let both write the same files.
func lockStore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store of the embedded NATS server: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another process serves from the store %s: choose another folder, or connect to that server: %w", dir, err)
	}
	return f, nil
}

// diskSize returns the size of the disk that holds a folder in bytes, or 0 if it is unknown.
func diskSize(dir string) int64 {
	var stat unix.Statfs_t
	if unix.Statfs(dir, &stat) != nil {
		return 0
	}
	return int64(stat.Blocks) * int64(stat.Bsize)
}
