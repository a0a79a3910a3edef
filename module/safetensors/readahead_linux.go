package safetensors

import "golang.org/x/sys/unix"

// readAheadCall is the size of one request: the kernel silently limits a request to what the device takes at once.
const readAheadCall = 256 << 10

// ReadAhead makes the kernel read n bytes at offset off of the file into the page cache, without waiting. It is a hint:
// it has no effect if the source is not a file or the file system does not support it. It must not be called during or
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
