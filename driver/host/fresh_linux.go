package host

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// freshLeast is the least that is written to a fresh page by descriptor.
	freshLeast = 512
	// freshPiece is what a mark is for. Several goroutines that write ranges of one memory, each in order, meet in the
	// middle of a piece, of which some is then written the slow way.
	freshPiece = 256 << 10
)

// freshMarks say which bytes of a memfd nobody has written by descriptor yet: of each piece, those from its mark on.
// Whether somebody has by the mapping does not matter: marks are about speed.
type freshMarks struct {
	off   atomic.Bool // nothing is fresh any more
	once  sync.Once
	marks []atomic.Uint32
}

// writeAt writes p at off of the memfd, of which to is the mapping: bytes that nobody has written by descriptor before
// by descriptor, the others by the mapping. The kernel does not clear a page that it overwrites, and does not map it:
// that takes a fifth of the time of a copy to pages that are not there yet, and pages that cannot be had are an error,
// and no signal. Where pages are there a copy is faster, so that bytes are written by descriptor once.
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

// isFresh reports whether n bytes within one piece are to be written by descriptor.
func (b *backing) isFresh(off int64, n int) bool {
	f := &b.fresh
	if n < freshLeast || f.off.Load() || fileSizeLimit() < off+int64(n) { // which is answered with SIGXFSZ
		return false
	}
	f.once.Do(func() { f.marks = make([]atomic.Uint32, (int64(len(b.mapping))+freshPiece-1)/freshPiece) })
	return off%freshPiece >= int64(f.marks[off/freshPiece].Load())
}

// wrote notes n bytes within one piece.
func (f *freshMarks) wrote(off int64, n int) {
	mark, end := &f.marks[off/freshPiece], uint32(off%freshPiece)+uint32(n)
	for before := mark.Load(); before < end && !mark.CompareAndSwap(before, end); before = mark.Load() {
	}
}

// pwrite writes by descriptor. Fewer bytes without an error mean that the mapping has to be used from now on.
func (b *backing) pwrite(p []byte, off int64) (written int, err error) {
	for written < len(p) {
		n, err := unix.Pwrite(b.fd, p[written:], off+int64(written))
		switch err {
		case nil:
			written += n
		case unix.EINTR:
		case unix.ENOMEM, unix.ENOSPC:
			return written, err // where a touch of the mapping would have ended the process
		default: // sealed meanwhile, or a kernel that does it otherwise
			b.fresh.off.Store(true)
			return written, nil
		}
	}
	return written, nil
}
