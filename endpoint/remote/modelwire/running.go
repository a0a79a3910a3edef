package modelwire

import (
	"crypto/sha256"
	"hash"
	"sync"

	"github.com/sharedtensor/sharedtensor/module"
)

// runningDigest computes the SHA-256 of data that arrives in pieces, out of order and concurrently. The next piece in
// order is hashed from its receive buffer; pieces that arrived early are hashed from their final location.
type runningDigest struct {
	size, first, step int64 // of the data, of the first piece, and of later pieces except the last
	write             func(h hash.Hash, begin, end int64)

	mu      sync.Mutex
	there   []bool
	next    int
	upTo    int64 // bytes hashed so far
	hashing bool
	hash    hash.Hash
}

// newRunningDigest returns the digest of size bytes (at least one). write passes the bytes of a range to the hash.
func newRunningDigest(size, first, step int64, write func(h hash.Hash, begin, end int64)) *runningDigest {
	r := &runningDigest{size: size, first: min(first, size), step: step, write: write, hash: sha256.New()}
	r.there = make([]bool, 1+(size-r.first+step-1)/step)
	return r
}

// writeBytes returns a write function for contiguous data.
func writeBytes(data []byte) func(h hash.Hash, begin, end int64) {
	return func(h hash.Hash, begin, end int64) { h.Write(data[begin:end]) }
}

// pieces returns the number of pieces.
func (r *runningDigest) pieces() int { return len(r.there) }

// piece returns the range of piece i.
func (r *runningDigest) piece(i int) (begin, end int64) {
	if i == 0 {
		return 0, r.first
	}
	begin = r.first + int64(i-1)*r.step
	return begin, min(begin+r.step, r.size)
}

// feed hashes p, which has been stored at the offset, if it is next in order and no other goroutine is hashing. The
// caller must call arrived when its piece is complete.
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

// arrived records a complete piece and hashes all available data unless another goroutine does. It returns true to
// exactly one caller, when the digest is complete.
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

// digest returns the digest, which must be complete.
func (r *runningDigest) digest() module.Digest { return module.Digest(r.hash.Sum(nil)) }
