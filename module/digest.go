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

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Digest is the SHA-256 of a tensor's elements, row-major, as they stand in a safetensors file. Shape and dtype are not
// part of it.
type Digest [sha256.Size]byte

// String is the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText is the digest in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is [ParseDigest].
func (d *Digest) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDigest(string(text))
	return err
}

// TensorDigest computes the digest of one tensor, whatever its strides and device. It borrows t.
func TensorDigest(ctx context.Context, t *tensor.Tensor) (Digest, error) {
	h := sha256.New()
	if _, err := t.WriteTo(&stream{ctx: ctx, w: h}); err != nil {
		return Digest{}, err
	}
	return Digest(h.Sum(nil)), nil
}

// Digests computes the digests of all tensors, several at a time: workers of them, or one a processor where workers is
// not positive. Tied tensors are read once. It borrows sd. The first error ends the work and names the tensor.
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
					// Only the first cause stays; the other workers stop with it.
					cancel(fmt.Errorf("tensor %s: %w", quote(sd.names[i]), err))
					return
				}
				digests[i] = d
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	named := make(map[string]Digest, sd.Len())
	for i, name := range sd.names {
		named[name] = digests[sameAs[i]]
	}
	return named, nil
}

// StateDictDigest computes one digest of the whole: the SHA-256 of one record a tensor, in the order of their names as
// bytes. A record is LENGTH:NAME DTYPE [DIMENSIONS] and a space, such as "4:bias float32 [3] " for a name of 4 bytes,
// followed by the 32 bytes of the tensor's digest; dimensions stand one space apart. Metadata, strides and ties are not
// part of it, so that a copy has the digest of its original. workers is as with [Digests]. It borrows sd.
func StateDictDigest(ctx context.Context, sd *StateDict, workers int) (Digest, error) {
	each, err := Digests(ctx, sd, workers)
	if err != nil {
		return Digest{}, err
	}
	return digestOf(sd, each), nil
}

// AddDigests computes the digest of every tensor, as [Digests] does, and puts them into the state dict: they cross with
// the manifest when it is published, and readers get them from [StateDict.Digest] and [StateDict.ClaimedDigest]. Like
// [StateDict.Set] it needs the state dict for itself; it is for tensors that nobody writes to any more.
func AddDigests(ctx context.Context, sd *StateDict, workers int) error {
	each, err := Digests(ctx, sd, workers)
	if err != nil {
		return err
	}
	return sd.SetDigests(each)
}

// SetDigests puts digests that are known already into the state dict, one for each tensor, and replaces those that were
// there. A map that lacks a tensor, or names one that is not there, is [ErrName], and changes nothing. Like
// [StateDict.Set] it needs the state dict for itself.
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

// ClaimedDigest is the digest of the whole, as [StateDictDigest] defines it, made of the digests that the state dict
// has of its tensors, and whether it has one of each. No tensor is read: those that came with a manifest are what the
// publisher claims, and [Verify] compares them with the bytes.
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

// digestOf makes the digest of the whole of those of the tensors.
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

// Verify computes the digest of the whole, as [StateDictDigest] does, and fails with [ErrDigest] where it is not the
// one that is wanted. It borrows sd.
func Verify(ctx context.Context, sd *StateDict, want Digest) error {
	got, err := StateDictDigest(ctx, sd, 0)
	if err == nil && got != want {
		err = fmt.Errorf("%w: their digest is %v, not %v", ErrDigest, got, want)
	}
	return err
}

// ParseDigest reads a digest in hexadecimal, as String writes it.
func ParseDigest(text string) (d Digest, err error) {
	if len(text) != 2*len(d) {
		return d, fmt.Errorf("a digest has %d hexadecimal digits, not %d", 2*len(d), len(text))
	}
	if _, err := hex.Decode(d[:], []byte(text)); err != nil {
		return Digest{}, fmt.Errorf("digest: %w", err)
	}
	return d, nil
}

// distinct returns the positions of the tensors with tied ones once, and for every position the one that stands for it.
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
