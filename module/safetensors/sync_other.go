//go:build !unix

package safetensors

// syncDir does nothing: this system cannot sync a directory.
func syncDir(string) error { return nil }
