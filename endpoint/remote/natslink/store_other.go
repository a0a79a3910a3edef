//go:build !unix

package natslink

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockStore opens the folder without locking it, because this system has no lock that ends with its process.
func lockStore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store of the embedded NATS server: %w", err)
	}
	return f, nil
}

// diskSize returns 0: the size of the disk is unknown.
func diskSize(string) int64 { return 0 }
