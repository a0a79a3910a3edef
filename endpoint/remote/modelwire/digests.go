package modelwire

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// maxSums limits the number of kept digests and hashes of chunks. Evicted ones are computed again when they are
// requested.
const maxSums = 1 << 18

// Version identifies a version of a model. Versions are immutable.
type Version struct {
	// ServerID identifies the owner.
	ServerID, Name string
	Version        uint64
}

// sumsKey identifies bytes of a version and a hash function. An entry never becomes stale.
type sumsKey struct {
	Version
	part string // "tensor " followed by the tensor's name, or "file"
	hash Hash
}

// Digests keeps the digests of versions that were requested before, and of versions that were received with their
// digests. The zero value is empty. Its methods are safe for concurrent use.
type Digests struct {
	mu    sync.Mutex
	known map[sumsKey]*sumsEntry
	sums  int // kept digests and hashes of chunks
}

type sumsEntry struct {
	done chan struct{}
	sums TensorSums
	err  error

	read, bytes atomic.Int64 // progress of the computation
}

// Hashing is the progress of a digest that is being computed.
type Hashing struct {
	// Read is the number of bytes that were read, and Bytes the number of all bytes.
	Read, Bytes int64
	// Done reports that the digest is known.
	Done bool
}

// FileProgress returns the progress of the SHA-256 of a version's safetensors file. ok is false if it is neither
// known nor being computed.
func (d *Digests) FileProgress(v Version) (p Hashing, ok bool) {
	return d.progress(sumsKey{v, "file", SHA256})
}

// TensorProgress returns the progress of the digest of a version's tensor. ok is false if it is
// neither known nor being computed.
func (d *Digests) TensorProgress(h Hash, v Version, name string) (p Hashing, ok bool) {
	return d.progress(sumsKey{v, "tensor " + name, h})
}

func (d *Digests) progress(key sumsKey) (p Hashing, ok bool) {
	d.mu.Lock()
	entry := d.known[key]
	d.mu.Unlock()
	if entry == nil {
		return p, false
	}
	select {
	case <-entry.done:
		return Hashing{Done: true}, entry.err == nil
	default:
		return Hashing{Read: entry.read.Load(), Bytes: entry.bytes.Load()}, true
	}
}

// Add records the digests of a received version, which must be known.
func (d *Digests) Add(v Version, m *Manifest) {
	if d == nil {
		return
	}
	done := make(chan struct{})
	close(done)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range m.Tensors {
		e := &m.Tensors[i]
		d.setLocked(sumsKey{v, "tensor " + e.Name, m.Hash}, &sumsEntry{done: done, sums: e.TensorSums})
		d.sums += len(e.Chunks)
	}
}

// Tensor returns the digest of a version's tensor, whose bytes are source.
func (d *Digests) Tensor(ctx context.Context, h Hash, v Version, name string, source *Content) (TensorSums, error) {
	return d.get(ctx, sumsKey{v, "tensor " + name, h}, source)
}

// File returns the SHA-256 of a version's safetensors file, whose bytes are source.
func (d *Digests) File(ctx context.Context, v Version, source *Content) (Digest, error) {
	sums, err := d.get(ctx, sumsKey{v, "file", SHA256}, source)
	return sums.Digest, err
}

// get returns the digest of key. If it is not kept, get computes it by reading source; concurrent callers wait for it.
// If the computing caller's context ends, a waiting caller computes the digest instead.
func (d *Digests) get(ctx context.Context, key sumsKey, source *Content) (TensorSums, error) {
	for {
		d.mu.Lock()
		entry := d.known[key]
		if entry == nil {
			entry = &sumsEntry{done: make(chan struct{})}
			d.setLocked(key, entry)
			d.mu.Unlock()
			d.finish(ctx, key, entry, source)
			return entry.sums, entry.err
		}
		d.mu.Unlock()
		select {
		case <-entry.done:
			if entry.err == nil || !errors.Is(entry.err, context.Canceled) {
				return entry.sums, entry.err
			}
		case <-ctx.Done():
			return TensorSums{}, context.Cause(ctx)
		}
	}
}

func (d *Digests) setLocked(key sumsKey, entry *sumsEntry) {
	if d.known == nil || d.sums >= maxSums {
		d.known, d.sums = map[sumsKey]*sumsEntry{}, 0
	}
	d.known[key] = entry
	d.sums++
}

// finish computes a digest and wakes the waiters. Failures are not kept.
func (d *Digests) finish(ctx context.Context, key sumsKey, entry *sumsEntry, source *Content) {
	var buffer []byte
	entry.bytes.Store(source.Bytes())
	entry.sums, entry.err = SumTensor(key.hash, source.Bytes(), func(begin, end int64) (data []byte, err error) {
		if ctx.Err() != nil {
			return nil, context.Canceled
		}
		entry.read.Store(begin)
		data, buffer, err = source.View(begin, end, buffer)
		return data, err
	})
	source.pos = 0
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry.err != nil && d.known[key] == entry {
		delete(d.known, key)
	}
	d.sums += len(entry.sums.Chunks)
	close(entry.done)
}
