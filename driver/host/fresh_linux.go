package host

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// freshLeast is the minimum size of a write to a fresh page by descriptor.
	freshLeast = 512
	// freshPiece is the range of one mark. Goroutines that write different ranges of one memory, each in order, meet
	// within a piece, part of which is then written the slow way.
	freshPiece = 256 << 10
)

// freshMarks records which bytes of a memfd were never written by descriptor: of each piece, the bytes from its mark
// on. Writes through the mapping are ignored; marks only affect speed.
type freshMarks struct {
	off   atomic.Bool // no byte is fresh
	once  sync.Once
	marks []atomic.Uint32
}

// writeAt writes p at off of the memfd, whose mapping is to. Bytes that were never written by descriptor are written by
// descriptor, the others through the mapping. The kernel neither clears nor maps a page that it overwrites: this takes
// a fifth of the time of a copy to missing pages, and missing memory is an error instead of a signal. For existing
// pages a copy is faster, so each byte is written by descriptor once.
func (b *backing) writeAt(p, to []byte, off int64) (written int, err error) {
	for written < len(p) {
		at := off + int64(written)
		part := p[written:][:min(freshPiece-at%freshPiece, int64(len(p)-written))]
		done := 0
		if b.isFresh(at, len(part)) {
			if done, err = b.pwrite(part, at); err != nil {
				return written + done, err
			}
			b.fresh.wrote(at, done)
		}
		copy(to[written+done:], part[done:])
		written += len(part)
	}
	return written, nil
}

// isFresh reports whether n bytes within one piece should be written by descriptor.
func (b *backing) isFresh(off int64, n int) bool {
	f := &b.fresh
	if n < freshLeast || f.off.Load() || fileSizeLimit() < off+int64(n) { // which would raise SIGXFSZ
		return false
	}
	f.once.Do(func() { f.marks = make([]atomic.Uint32, (int64(len(b.mapping))+freshPiece-1)/freshPiece) })
	return off%freshPiece >= int64(f.marks[off/freshPiece].Load())
}

// wrote records n bytes within one piece.
func (f *freshMarks) wrote(off int64, n int) {
	mark, end := &f.marks[off/freshPiece], uint32(off%freshPiece)+uint32(n)
	for before := mark.Load(); before < end && !mark.CompareAndSwap(before, end); before = mark.Load() {
	}
}

// pwrite writes by descriptor. Fewer bytes without an error mean that the mapping must be used from now on.
func (b *backing) pwrite(p []byte, off int64) (written int, err error) {
	for written < len(p) {
		n, err := unix.Pwrite(b.fd, p[written:], off+int64(written))
		switch err {
		case nil:
			written += n
		case unix.EINTR:
		case unix.ENOMEM, unix.ENOSPC:
			return written, err // touching the mapping would have ended the process
		default: // sealed meanwhile, or another kernel behaviour
			b.fresh.off.Store(true)
			return written, nil
		}
	}
	return written, nil
}
