package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"
	"sync"
)

// hashSource is data to hash: a section of a file, or an attached tensor.
type hashSource interface {
	WriteTo(w io.Writer) (int64, error)
}

// section makes a hashSource of a reader. It uses long reads, so that system calls do not limit the speed.
type section struct{ io.Reader }

// hashPiece is the size of one read.
const hashPiece = 1 << 20

// WriteTo copies everything to w.
func (s section) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, s.Reader, make([]byte, hashPiece))
}

// hashAll computes the SHA-256 of every tensor that is not tied, with one goroutine per processor. Tied tensors get the
// digest of the tensor they are tied to. Calls of progress are serialized. The first error stops the work and names the
// tensor.
func hashAll(ctx context.Context, tensors []*tensorRow, open func(*tensorRow) (hashSource, error), progress func(done, total int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var total int64
	work := make(chan *tensorRow, len(tensors))
	for _, t := range tensors {
		if t.TiedTo == "" {
			total += t.Bytes
			work <- t
		}
	}
	close(work)
	count := &hashProgress{ctx: ctx, total: total, tell: progress}
	count.add(0)
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(work)) {
		group.Go(func() {
			for t := range work {
				if err := hashOne(t, open, count); err != nil {
					cancel(fmt.Errorf("tensor %q: %w", t.Name, err)) // only the first cause is kept
					return
				}
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	digests := make(map[string]string, len(tensors))
	for _, t := range tensors {
		digests[t.Name] = t.Digest
	}
	for _, t := range tensors {
		if t.TiedTo != "" {
			t.Digest = digests[t.TiedTo]
		}
	}
	return nil
}

// hashOne computes one digest.
func hashOne(t *tensorRow, open func(*tensorRow) (hashSource, error), count *hashProgress) error {
	source, err := open(t)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := source.WriteTo(io.MultiWriter(h, count))
	if err == nil && n != t.Bytes {
		err = io.ErrUnexpectedEOF // the file was truncated after its header was read
	}
	t.Digest = hex.EncodeToString(h.Sum(nil))
	return err
}

// hashProgress counts hashed bytes, and stops the work when its context ends.
type hashProgress struct {
	ctx   context.Context
	total int64
	tell  func(done, total int64)

	mu   sync.Mutex
	done int64
}

func (p *hashProgress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += int64(n)
	p.tell(p.done, p.total)
}

// Write counts the bytes of b.
func (p *hashProgress) Write(b []byte) (int, error) {
	if err := context.Cause(p.ctx); err != nil {
		return 0, err
	}
	p.add(len(b))
	return len(b), nil
}
