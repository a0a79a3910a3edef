package module

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// StateDict is the named tensors of a module, in the order in which they were set. It owns its tensors. Methods that
// only read are safe for concurrent use; Set, Take, Rename and Close need the state dict for themselves.
type StateDict struct {
	// Metadata is what the file or the publisher said about the whole; it may be nil.
	Metadata map[string]string

	names []string
	index nameIndex
	// The tensors are views, until one is set or taken: from then on, and where there are no views, they are in
	// tensors.
	views   *tensor.Views
	used    []uint32 // the storages of the views that have tensors, in the order of their first use
	tensors []*tensor.Tensor
	digests []*Digest // nil where no tensor has one, else one a name
}

// NewStateDict returns an empty state dict.
func NewStateDict() *StateDict { return &StateDict{} }

// at is the tensor at a position.
func (sd *StateDict) at(i int) *tensor.Tensor {
	if sd.views != nil {
		return sd.views.At(i)
	}
	return sd.tensors[i]
}

// place is where the tensor at a position is, for which it need not be made.
func (sd *StateDict) place(i int) (*tensor.Storage, tensor.Spec) {
	if sd.views != nil {
		return sd.views.Place(i)
	}
	return sd.tensors[i].Storage(), sd.tensors[i].Spec()
}

// makeAll makes all tensors, so that they can be set and taken.
func (sd *StateDict) makeAll() {
	if sd.views == nil {
		return
	}
	sd.tensors = make([]*tensor.Tensor, len(sd.names))
	for i := range sd.tensors {
		sd.tensors[i] = sd.views.Take(i)
	}
	// The tensors hold their storages, so nothing is freed here that could fail.
	_ = sd.views.Close()
	sd.views, sd.used = nil, nil
}

// Set puts t under a new name. It takes t: on error t is closed. Errors are [ErrName] and [ErrDuplicateName].
func (sd *StateDict) Set(name string, t *tensor.Tensor) error {
	err := checkName(name)
	if _, twice := sd.index.find(sd.names, name); err == nil && twice {
		err = fmt.Errorf("%w: %s", ErrDuplicateName, quote(name))
	}
	if err != nil {
		// The reason why the name was refused says more than what Close may add.
		_ = t.Close()
		return err
	}
	sd.makeAll()
	sd.names = append(sd.names, name)
	sd.tensors = append(sd.tensors, t)
	sd.index.add(sd.names)
	if sd.digests != nil {
		sd.digests = append(sd.digests, nil)
	}
	return nil
}

// Get returns the tensor under a name, borrowed: the caller does not close it, and clones it to keep it longer than the
// state dict.
func (sd *StateDict) Get(name string) (*tensor.Tensor, bool) {
	i, found := sd.index.find(sd.names, name)
	if !found {
		return nil, false
	}
	return sd.at(i), true
}

// Digest returns the digest of a tensor that came with the manifest, and whether one did. It is what the publisher
// says; nobody has computed it here. [TensorDigest] computes it.
func (sd *StateDict) Digest(name string) (Digest, bool) {
	i, found := sd.index.find(sd.names, name)
	if !found || sd.digests == nil || sd.digests[i] == nil {
		return Digest{}, false
	}
	return *sd.digests[i], true
}

// Take removes a name and returns its tensor owned: the caller closes it. ok is false where there is no such name. It
// takes time proportional to the number of names, and like Set needs the state dict for itself.
func (sd *StateDict) Take(name string) (t *tensor.Tensor, ok bool) {
	at, found := sd.index.find(sd.names, name)
	if !found {
		return nil, false
	}
	sd.makeAll()
	t = sd.tensors[at]
	sd.names = slices.Concat(sd.names[:at], sd.names[at+1:])
	sd.tensors = slices.Concat(sd.tensors[:at], sd.tensors[at+1:])
	if sd.digests != nil {
		sd.digests = slices.Concat(sd.digests[:at], sd.digests[at+1:])
	}
	sd.index, _ = indexNames(sd.names)
	sd.moveNote(name, "")
	return t, true
}

// Rename puts a tensor under another name, at the same place in the order. It takes time like Take, and like Set it
// needs the state dict for itself. Errors are [ErrName], also where there is no tensor of the old name, and
// [ErrDuplicateName].
func (sd *StateDict) Rename(from, to string) error {
	at, found := sd.index.find(sd.names, from)
	if !found {
		return fmt.Errorf("%w: there is no tensor %s", ErrName, quote(from))
	}
	if err := checkName(to); err != nil || from == to {
		return err
	}
	if _, twice := sd.index.find(sd.names, to); twice {
		return fmt.Errorf("%w: %s", ErrDuplicateName, quote(to))
	}
	sd.names = slices.Clone(sd.names)
	sd.names[at] = to
	sd.index, _ = indexNames(sd.names)
	sd.moveNote(from, to)
	return nil
}

// Len is the number of names.
func (sd *StateDict) Len() int { return len(sd.names) }

// Names returns the names in order. The slice is the caller's.
func (sd *StateDict) Names() []string { return slices.Clone(sd.names) }

// All yields names and tensors in order; the tensors are borrowed.
func (sd *StateDict) All() iter.Seq2[string, *tensor.Tensor] {
	return func(yield func(string, *tensor.Tensor) bool) {
		for i, name := range sd.names {
			if !yield(name, sd.at(i)) {
				return
			}
		}
	}
}

// Storages returns the distinct storages behind the tensors, borrowed, in the order of their first use.
func (sd *StateDict) Storages() []*tensor.Storage {
	if sd.views == nil {
		storages, _ := sd.storages()
		return storages
	}
	// No tensor need be looked at.
	distinct := make([]*tensor.Storage, 0, len(sd.used))
	known := make(map[*tensor.Storage]struct{}, len(sd.used))
	for _, index := range sd.used {
		s := sd.views.Storage(int(index))
		if _, twice := known[s]; !twice {
			known[s] = struct{}{}
			distinct = append(distinct, s)
		}
	}
	return distinct
}

// storages also returns each tensor's position in that list.
func (sd *StateDict) storages() ([]*tensor.Storage, []uint32) {
	var storages []*tensor.Storage
	position := map[*tensor.Storage]uint32{}
	index := make([]uint32, len(sd.names))
	for i := range sd.names {
		s, _ := sd.place(i)
		// Most often all tensors are in one slab.
		if i > 0 && s == storages[index[i-1]] {
			index[i] = index[i-1]
			continue
		}
		p, known := position[s]
		if !known {
			p = uint32(len(storages))
			position[s] = p
			storages = append(storages, s)
		}
		index[i] = p
	}
	return storages, index
}

// Bytes is the size of all tensors, in bytes, with tied ones counted once; the largest number where the sum is larger,
// as it can be with views that repeat their elements.
func (sd *StateDict) Bytes() int64 {
	twice := map[int]struct{}{}
	for _, group := range sd.aliases() {
		for _, i := range group[1:] {
			twice[i] = struct{}{}
		}
	}
	var sum int64
	for i := range sd.names {
		if _, counted := twice[i]; counted {
			continue
		}
		_, spec := sd.place(i)
		n, _ := spec.ByteLen() // it was checked when the tensor was
		if n > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += n
	}
	return sum
}

// Clone returns another owned state dict over the same storages, with the same names and metadata.
func (sd *StateDict) Clone() *StateDict {
	c := &StateDict{Metadata: maps.Clone(sd.Metadata), names: sd.Names(), digests: slices.Clone(sd.digests), tensors: make([]*tensor.Tensor, len(sd.names))}
	for i := range c.tensors {
		c.tensors[i] = sd.at(i).Clone()
	}
	c.index, _ = indexNames(c.names)
	return c
}

// Close closes all tensors, and with the last tensor of each storage its memory; it returns the first error. Names and
// specs can still be read. A second Close, and Close of nil, are nil.
func (sd *StateDict) Close() error {
	if sd == nil {
		return nil
	}
	if sd.views != nil {
		return sd.views.Close()
	}
	var first error
	for _, t := range sd.tensors {
		if err := t.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
