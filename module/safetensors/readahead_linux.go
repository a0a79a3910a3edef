package safetensors

import "golang.org/x/sys/unix"

// readAheadCall is how much one call asks for: the kernel reads no more for one than the device takes in one request,
// and leaves the rest out without a word.
const readAheadCall = 256 << 10

// ReadAhead asks the kernel to bring n bytes at offset off of the file into the page cache, and does not wait for them.
// It is advice: a source that is no file, or a file system that cannot, ignores it. It must not be called during or
// after Close of the model.
func (f *File) ReadAhead(off, n int64) {
	if f.f == nil {
		return
	}
	conn, err := f.f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		for end := off + n; off < end; off += readAheadCall {
			if unix.Fadvise(int(fd), off, min(readAheadCall, end-off), unix.FADV_WILLNEED) != nil {
				return
			}
		}
	})
}
