//go:build !linux

package safetensors

// ReadAhead does nothing: it is a hint that this system does not support.
func (f *File) ReadAhead(off, n int64) {}
