package module

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Digest is the SHA-256 of a tensor's elements, row-major, as in a safetensors file. It excludes shape and dtype.
type Digest [sha256.Size]byte

// String returns the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText returns the digest in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is [ParseDigest].
func (d *Digest) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDigest(string(text))
	return err
}

// TensorDigest computes the digest of one tensor with any strides on any device. It borrows t.
func TensorDigest(ctx context.Context, t *tensor.Tensor) (Digest, error) {
	h := sha256.New()
	if _, err := t.WriteTo(&stream{ctx: ctx, w: h}); err != nil {
		return Digest{}, err
	}
	return Digest(h.Sum(nil)), nil
}

// Digests computes the digests of all tensors with several workers; if workers is not positive, one for each processor.
// Tied tensors are read once. It borrows sd. The first error ends the work and names the tensor.
func Digests(ctx context.Context, sd *StateDict, workers int) (map[string]Digest, error) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo, sameAs := sd.distinct()
	digests := make([]Digest, sd.Len())
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(workers, len(todo)) {
		group.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(len(todo)) {
					return
				}
				i := todo[n]
				d, err := TensorDigest(ctx, sd.at(i))
				if err != nil {
					// Only the first cause is kept; the other workers stop with it.
					cancel(fmt.Errorf("tensor %s: %w", quote(sd.names[i]), err))
					return
				}
				digests[i] = d
			}
		})
	}
	group.Wait()
	if err := ended.Cause(ctx); err != nil {
		return nil, err
	}
	named := make(map[string]Digest, sd.Len())
	for i, name := range sd.names {
		named[name] = digests[sameAs[i]]
	}
	return named, nil
}

// StateDictDigest computes one digest of the state dict: the SHA-256 of one record for each tensor, sorted by name as
// bytes. A record is LENGTH:NAME DTYPE [DIMENSIONS] and a space, such as "4:bias float32 [3] " for a name of 4 bytes,
// followed by the 32 bytes of the tensor's digest; dimensions are separated by one space. Metadata, strides and ties
// are excluded, so a copy has the digest of its original. workers is as in [Digests]. It borrows sd.
func StateDictDigest(ctx context.Context, sd *StateDict, workers int) (Digest, error) {
	each, err := Digests(ctx, sd, workers)
	if err != nil {
		return Digest{}, err
	}
	return digestOf(sd, each), nil
}

// AddDigests computes the digest of every tensor, as [Digests] does, and stores them in the state dict. They are
// published with the manifest, and readers get them from [StateDict.Digest] and [StateDict.ClaimedDigest]. The tensors
// must not be written afterwards. Like [StateDict.Set] it requires exclusive access.
func AddDigests(ctx context.Context, sd *StateDict, workers int) error {
	each, err := Digests(ctx, sd, workers)
	if err != nil {
		return err
	}
	return sd.SetDigests(each)
}

// SetDigests stores known digests in the state dict, one for each tensor, replacing existing ones. A map that lacks a
// tensor, or names a missing one, is [ErrName] and changes nothing. Like [StateDict.Set] it requires exclusive access.
func (sd *StateDict) SetDigests(each map[string]Digest) error {
	all := make([]Digest, len(sd.names))
	digests := make([]*Digest, len(sd.names))
	for i, name := range sd.names {
		d, found := each[name]
		if !found {
			return fmt.Errorf("%w: no digest is given for %s", ErrName, quote(name))
		}
		all[i] = d
		digests[i] = &all[i]
	}
	if len(each) != len(all) {
		return fmt.Errorf("%w: %d digests are given for %d tensors", ErrName, len(each), len(all))
	}
	sd.digests = digests
	return nil
}

// ClaimedDigest returns the digest of the state dict as [StateDictDigest] defines it, computed from the stored digests,
// and whether every tensor has one. No tensor is read: digests from a manifest are the publisher's claims, and [Verify]
// compares them with the bytes.
func (sd *StateDict) ClaimedDigest() (Digest, bool) {
	each := make(map[string]Digest, len(sd.names))
	for _, name := range sd.names {
		d, found := sd.Digest(name)
		if !found {
			return Digest{}, false
		}
		each[name] = d
	}
	return digestOf(sd, each), true
}

// digestOf computes the digest of the state dict from the digests of its tensors.
func digestOf(sd *StateDict, each map[string]Digest) Digest {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(each)) {
		t, _ := sd.Get(name)
		d := each[name]
		fmt.Fprintf(h, "%d:%s %v %v ", len(name), name, t.DType(), []int64(t.Shape()))
		h.Write(d[:])
	}
	return Digest(h.Sum(nil))
}

// Verify computes the digest of the state dict, as [StateDictDigest] does, and returns [ErrDigest] if it is not want.
// It borrows sd.
func Verify(ctx context.Context, sd *StateDict, want Digest) error {
	got, err := StateDictDigest(ctx, sd, 0)
	if err == nil && got != want {
		err = fmt.Errorf("%w: their digest is %v, not %v", ErrDigest, got, want)
	}
	return err
}

// ParseDigest parses a digest in hexadecimal, as String returns it.
func ParseDigest(text string) (d Digest, err error) {
	if len(text) != 2*len(d) {
		return d, fmt.Errorf("a digest has %d hexadecimal digits, not %d", 2*len(d), len(text))
	}
	if _, err := hex.Decode(d[:], []byte(text)); err != nil {
		return Digest{}, fmt.Errorf("digest: %w", err)
	}
	return d, nil
}

// distinct returns the positions of the tensors with tied ones once, and for every position the position that
// represents it.
func (sd *StateDict) distinct() (once, sameAs []int) {
	sameAs = make([]int, sd.Len())
	for i := range sameAs {
		sameAs[i] = i
	}
	for _, group := range sd.aliases() {
		for _, i := range group {
			sameAs[i] = group[0]
		}
	}
	for i, j := range sameAs {
		if i == j {
			once = append(once, i)
		}
	}
	return once, sameAs
}
