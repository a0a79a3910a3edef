package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Pinner is a device that copies from and to pinned host memory directly, without staging.
type Pinner interface {
	Device
	// PinHost pins m for copies of all devices of this kind. It borrows m, whose mapping remains until the result is
	// closed. Memory that is not writable is pinned read-only. If the device or the system cannot pin the memory, copies
	// without pinning work.
	PinHost(m Mapped) (Pinned, error)
}

// Pinned is pinned host memory ([Pinner]). Its methods are safe for concurrent use.
type Pinned interface {
	// CopyTo copies the first n bytes to the beginning of dst, which is memory of a device of the same kind, and returns
	// when they have arrived. progress, if not nil, receives the number of bytes copied since its last call, on one
	// goroutine at a time. After ctx ends, CopyTo returns its cause when the pieces in flight have arrived.
	CopyTo(ctx context.Context, dst Memory, n int64, progress func(bytes int64)) error
	// CopyFrom copies the first n bytes of src to the beginning of this memory, like CopyTo. Memory that is pinned
	// read-only refuses it with [ErrReadOnly].
	CopyFrom(ctx context.Context, src Memory, n int64, progress func(bytes int64)) error
	// Close unpins the memory, after the copies that run. A second Close returns nil.
	io.Closer
}

// copyPiece is the size in bytes of the pieces between which [Copy] observes its context.
const copyPiece = 64 << 20

// Copy copies the first n bytes of src, which may be memory of another device, to the beginning of dst. It borrows both.
// It copies inside the devices if they can do that, otherwise by pinned, which is the pinned memory of src or of dst, or
// nil, and otherwise through the host. It returns the cause of ctx after that ends. progress is that of [Pinned].
func Copy(ctx context.Context, dst, src Memory, pinned Pinned, n int64, progress func(bytes int64)) error {
	if n < 0 || n > dst.Bytes() || n > src.Bytes() {
		return fmt.Errorf("%w: a copy of %d bytes from %d to %d", ErrRange, n, src.Bytes(), dst.Bytes())
	}
	if progress == nil {
		progress = func(int64) {}
	}
	inside := func(at, size int64) error { return dst.CopyFrom(at, src, at, size) }
	if err := inPieces(ctx, n, copyPiece, progress, inside); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if pinned != nil {
		if _, fromHost := src.(Mapped); fromHost {
			return pinned.CopyTo(ctx, dst, n, progress)
		}
		return pinned.CopyFrom(ctx, src, n, progress)
	}
	if l, can := dst.(Loader); can {
		return inPieces(ctx, n, copyPiece, progress, func(at, size int64) error { return l.LoadAt(src, at, at, size, nil) })
	}
	buf := make([]byte, min(n, 8<<20))
	return inPieces(ctx, n, int64(len(buf)), progress, func(at, size int64) error {
		if _, err := io.ReadFull(io.NewSectionReader(src, at, size), buf[:size]); err != nil {
			return err
		}
		_, err := dst.WriteAt(buf[:size], at)
		return err
	})
}

// inPieces calls copy for each piece of n bytes until ctx ends.
func inPieces(ctx context.Context, n, piece int64, progress func(bytes int64), copy func(at, size int64) error) error {
	for at := int64(0); at < n; at += piece {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		size := min(piece, n-at)
		if err := copy(at, size); err != nil {
			return err
		}
		progress(size)
	}
	return nil
}
