package mirror

import (
	"crypto/sha256"
	"hash"
	"sync"

	"github.com/sharedtensor/sharedtensor/module"
)

// runningDigest is the SHA-256 of bytes that arrive in pieces, out of order, of which several may arrive at once.
// What comes next in order is hashed from the buffer it came in, and what came ahead of its turn from where it lies.
type runningDigest struct {
	size, first, step int64 // of all, of the first piece, and of those behind it but the last
	write             func(h hash.Hash, begin, end int64)

	mu      sync.Mutex
	there   []bool
	next    int
	upTo    int64 // bytes that are in the hash
	hashing bool
	hash    hash.Hash
}

// newRunningDigest is that of size bytes, at least one, which write hands to a hash.
func newRunningDigest(size, first, step int64, write func(h hash.Hash, begin, end int64)) *runningDigest {
	r := &runningDigest{size: size, first: min(first, size), step: step, write: write, hash: sha256.New()}
	r.there = make([]bool, 1+(size-r.first+step-1)/step)
	return r
}

// writeBytes is for bytes that lie together.
func writeBytes(data []byte) func(h hash.Hash, begin, end int64) {
	return func(h hash.Hash, begin, end int64) { h.Write(data[begin:end]) }
}

// pieces is how many there are.
func (r *runningDigest) pieces() int { return len(r.there) }

// piece is where a piece lies.
func (r *runningDigest) piece(i int) (begin, end int64) {
	if i == 0 {
		return 0, r.first
	}
	begin = r.first + int64(i-1)*r.step
	return begin, min(begin+r.step, r.size)
}

// feed hashes bytes that have come to their place, if they are the next ones and no other goroutine hashes. A goroutine
// that feeds calls arrived for its piece later.
func (r *runningDigest) feed(at int64, p []byte) {
	r.mu.Lock()
	if r.hashing || at != r.upTo {
		r.mu.Unlock()
		return
	}
	r.hashing = true
	r.mu.Unlock()
	r.hash.Write(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upTo += int64(len(p))
	r.hashing = false
}

// arrived notes a piece, and hashes what can be hashed now unless another goroutine does. It reports whether the digest
// is complete, to one caller.
func (r *runningDigest) arrived(piece int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.there[piece] = true
	if r.hashing {
		return false
	}
	r.hashing = true
	for r.next < len(r.there) && r.there[r.next] {
		_, end := r.piece(r.next)
		if begin := r.upTo; begin < end {
			r.mu.Unlock()
			r.write(r.hash, begin, end)
			r.mu.Lock()
			r.upTo = end
		}
		r.next++
	}
	r.hashing = false
	return r.next == len(r.there)
}

// digest is the digest once it is complete.
func (r *runningDigest) digest() module.Digest { return module.Digest(r.hash.Sum(nil)) }
