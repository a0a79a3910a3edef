//go:build unix

package safetensors

import "os"

// syncDir makes a rename inside the directory survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
