package modelwire

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/sharedtensor/sharedtensor/module"
)

// ChunkBytes is the unit in which BLAKE3 verifies a tensor. The last chunk of a tensor is shorter. Chunks are verified
// independently, so they may arrive in any order on several connections.
const ChunkBytes = 4 << 20

// Hash is a hash function.
type Hash uint8

// Hash functions. BLAKE3 is twice as fast as SHA-256 here (BenchmarkHash).
const (
	// SHA256 is the hash of a tensor's bytes, as in [module.TensorDigest].
	SHA256 Hash = iota
	// BLAKE3 is the hash of the hashes of a tensor's chunks.
	BLAKE3
)

// String returns the name of the hash function, as it is used in requests and ETags.
func (h Hash) String() string {
	if h == BLAKE3 {
		return "blake3"
	}
	return "sha256"
}

// RangeBytes returns the size of ranges that are requested, for a desired size. Ranges that BLAKE3 verifies consist of
// whole chunks.
func (h Hash) RangeBytes(n int64) int64 {
	if h == BLAKE3 {
		return max(n/ChunkBytes, 1) * ChunkBytes
	}
	return n
}

// New returns a new hash.
func (h Hash) New() hash.Hash {
	if h == BLAKE3 {
		return blake3.New()
	}
	return sha256.New()
}

// Sum is a result of a hash function.
type Sum = module.Digest

// Digest identifies the bytes of a tensor or of a model.
type Digest struct {
	Hash Hash
	Sum  Sum
}

// ErrDigestText reports text that is not a digest.
var ErrDigestText = errors.New("not a digest: 64 hexadecimal digits, or blake3: before them")

// ParseDigest parses the text of a digest. Text without the name of a hash function is a SHA-256.
func ParseDigest(text string) (d Digest, err error) {
	name, sum, found := strings.Cut(text, ":")
	switch {
	case !found:
		sum = text
	case name == BLAKE3.String():
		d.Hash = BLAKE3
	case name != SHA256.String():
		return d, fmt.Errorf("%q: %w", text, ErrDigestText)
	}
	if d.Sum, err = module.ParseDigest(sum); err != nil {
		return d, fmt.Errorf("%q: %w", text, ErrDigestText)
	}
	return d, nil
}

// String returns the digest as [ParseDigest] reads it, or an empty string for the zero Digest.
func (d Digest) String() string {
	switch {
	case d == Digest{}:
		return ""
	case d.Hash == SHA256:
		return d.Sum.String()
	}
	return d.Hash.String() + ":" + d.Sum.String()
}

// ETag returns the value of an ETag header field for bytes with this digest.
func (d Digest) ETag() string {
	return `"` + d.Hash.String() + "-" + hex.EncodeToString(d.Sum[:]) + `"`
}

// chunks returns the number of chunks of a tensor.
func chunks(bytes int64) int { return int((bytes + ChunkBytes - 1) / ChunkBytes) }

// root returns the BLAKE3 digest of a tensor with the given hashes of chunks.
func root(sums []Sum) Digest {
	h := blake3.New()
	for i := range sums {
		_, _ = h.Write(sums[i][:]) // a hash never fails
	}
	return Digest{BLAKE3, Sum(h.Sum(nil))}
}

// TensorSums is a digest of a tensor. For BLAKE3 it holds the hashes of the chunks too.
type TensorSums struct {
	Digest
	Chunks []Sum
}

// SumTensor computes a digest of size bytes. view returns the bytes from begin to end, which are used until the next
// call.
func SumTensor(h Hash, size int64, view func(begin, end int64) ([]byte, error)) (TensorSums, error) {
	whole, out := h.New(), TensorSums{Digest: Digest{Hash: h}}
	for begin := int64(0); begin < size; begin += ChunkBytes {
		data, err := view(begin, min(begin+ChunkBytes, size))
		if err != nil {
			return TensorSums{}, err
		}
		if h == BLAKE3 {
			out.Chunks = append(out.Chunks, blake3.Sum256(data))
			continue
		}
		_, _ = whole.Write(data) // a hash never fails
	}
	if h == BLAKE3 {
		out.Digest = root(out.Chunks)
		return out, nil
	}
	out.Sum = Sum(whole.Sum(nil))
	return out, nil
}
