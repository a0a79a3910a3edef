//go:build !linux

package safetensors

// ReadAhead does nothing: it is advice, and this system takes none.
func (f *File) ReadAhead(off, n int64) {}
