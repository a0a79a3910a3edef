//go:build !unix

package safetensors

// syncDir does nothing: this system has no way to sync a directory.
func syncDir(string) error { return nil }
