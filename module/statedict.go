// Package module handles state dicts: the named tensors of a neural module. It is unrelated to Go modules.
//
// A [StateDict] holds tensors under their names. A [Manifest] describes one as a plain value that can be sent to
// another process, and [FromManifest] combines it with storages that were mapped there. [Load] fills device memory from
// a safetensors model, with all tensors in one slab that a [Layout] plans. [Save] writes a model back.
//
// Tied tensors are names for the same elements of the same storage. They are stored once in memory and on disk; a file
// records them in its metadata ([safetensors.TiedKey]).
//
// Surprises: a state dict made by FromManifest shares the manifest's slices and strings. Only the state dict closes its
// tensors: Close of a tensor that Get returned has no effect. A storage is closed with its last tensor.
package module

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/internal/storages"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// StateDict holds the named tensors of a module in the order in which they were set. It owns its tensors, which live
// until it is closed. Read-only methods and Close are safe for concurrent use; Set, Take and Rename require exclusive
// access.
type StateDict struct {
	// Metadata is that of the file or the publisher; it may be nil.
	Metadata map[string]string

	names []string
	index nameIndex
	// The tensors are in views until one is set or taken, and in tensors afterwards or without views.
	views   *views
	used    []uint32 // storages of the views that have tensors, in order of first use
	tensors []*tensor.Tensor
	// extra holds the storages that no named tensor uses, such as the slab of a file without tensors: an empty tensor for
	// each one, which owns a reference.
	extra   []*tensor.Tensor
	digests []*Digest // nil if no tensor has one, otherwise one for each name
	// entries is the metadata of the GGUF file from which a part was loaded, with the types of the values. If a whole file was
	// loaded, its slab contains them.
	entries gguf.Metadata
}

// NewStateDict returns an empty state dict.
func NewStateDict() *StateDict { return &StateDict{} }

// at returns the tensor at a position.
func (sd *StateDict) at(i int) *tensor.Tensor {
	if sd.views != nil {
		return sd.views.at(i)
	}
	return sd.tensors[i]
}

// place returns the storage and spec of the tensor at a position without creating the tensor.
func (sd *StateDict) place(i int) (*tensor.Storage, tensor.Spec) {
	if sd.views != nil {
		return sd.views.place(i)
	}
	return sd.tensors[i].Storage(), sd.tensors[i].Spec()
}

// makeAll creates all tensors, so that they can be set and taken.
func (sd *StateDict) makeAll() {
	if sd.views == nil {
		return
	}
	sd.tensors = make([]*tensor.Tensor, len(sd.names))
	for i := range sd.tensors {
		sd.tensors[i] = sd.views.take(i)
	}
	// The tensors hold their storages, so this frees nothing.
	_ = sd.views.close()
	sd.views, sd.used = nil, nil
}

// Set adds t under a new name. It takes ownership of t and closes it on an error. If t is a view, Set adds an alias of it,
// which outlives the tensor that the view was made from. Errors are [ErrName], [ErrDuplicateName], and
// [driver.ErrInvalid] for a nil tensor.
func (sd *StateDict) Set(name string, t *tensor.Tensor) error {
	if t == nil {
		return fmt.Errorf("%w: the tensor %s is nil", driver.ErrInvalid, quote(name))
	}
	err := checkName(name)
	if _, twice := sd.index.find(sd.names, name); err == nil && twice {
		err = fmt.Errorf("%w: %s", ErrDuplicateName, quote(name))
	}
	if err != nil {
		// best effort: the reason for the refusal is returned
		_ = t.Close()
		return err
	}
	sd.makeAll()
	sd.names = append(sd.names, name)
	sd.tensors = append(sd.tensors, storages.Keep(t))
	sd.index.add(sd.names)
	if sd.digests != nil {
		sd.digests = append(sd.digests, nil)
	}
	return nil
}

// Get returns the tensor of a name. It lives as long as the state dict and needs no Close. After the state dict was
// closed, access to its elements fails with [os.ErrClosed]. Alias it to keep it longer.
func (sd *StateDict) Get(name string) (*tensor.Tensor, bool) {
	i, found := sd.index.find(sd.names, name)
	if !found {
		return nil, false
	}
	return sd.at(i), true
}

// Digest returns the digest of a tensor from the manifest, and whether there is one. It is the publisher's claim;
// [TensorDigest] computes it.
func (sd *StateDict) Digest(name string) (Digest, bool) {
	i, found := sd.index.find(sd.names, name)
	if !found || sd.digests == nil || sd.digests[i] == nil {
		return Digest{}, false
	}
	return *sd.digests[i], true
}

// Take removes a name and returns its tensor, owned by the caller; ok is false if the name does not exist. Its cost is
// proportional to the number of names. Like Set it requires exclusive access.
func (sd *StateDict) Take(name string) (t *tensor.Tensor, ok bool) {
	at, found := sd.index.find(sd.names, name)
	if !found {
		return nil, false
	}
	sd.makeAll()
	t = storages.Own(sd.tensors[at])
	sd.names = slices.Concat(sd.names[:at], sd.names[at+1:])
	sd.tensors = slices.Concat(sd.tensors[:at], sd.tensors[at+1:])
	if sd.digests != nil {
		sd.digests = slices.Concat(sd.digests[:at], sd.digests[at+1:])
	}
	sd.index, _ = indexNames(sd.names)
	sd.moveNote(name, "")
	return t, true
}

// Rename changes the name of a tensor and keeps its position. It costs as much as Take and requires exclusive access.
// Errors are [ErrName], also for an unknown name, and [ErrDuplicateName].
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

// Len returns the number of names.
func (sd *StateDict) Len() int { return len(sd.names) }

// Names returns the names in order. The caller owns the slice.
func (sd *StateDict) Names() []string { return slices.Clone(sd.names) }

// All yields names and tensors in order. The tensors live as long as the state dict, as those of Get.
func (sd *StateDict) All() iter.Seq2[string, *tensor.Tensor] {
	return func(yield func(string, *tensor.Tensor) bool) {
		for i, name := range sd.names {
			if !yield(name, sd.at(i)) {
				return
			}
		}
	}
}

// Storages returns the distinct storages of the state dict, borrowed: first those without tensors, such as the slab of a
// file of metadata alone, and then those behind the tensors, in the order of their first use.
func (sd *StateDict) Storages() []*tensor.Storage {
	if sd.views == nil {
		distinct, _ := sd.storages()
		return distinct
	}
	// No tensor needs to be created.
	distinct := make([]*tensor.Storage, 0, len(sd.extra)+len(sd.used))
	for _, t := range sd.extra {
		distinct = append(distinct, t.Storage())
	}
	known := make(map[*tensor.Storage]struct{}, len(sd.used))
	for _, index := range sd.used {
		s := sd.views.storages[index]
		if _, twice := known[s]; !twice {
			known[s] = struct{}{}
			distinct = append(distinct, s)
		}
	}
	return distinct
}

// storages also returns each tensor's position in that list.
func (sd *StateDict) storages() ([]*tensor.Storage, []uint32) {
	var distinct []*tensor.Storage
	position := map[*tensor.Storage]uint32{}
	for _, t := range sd.extra {
		position[t.Storage()] = uint32(len(distinct))
		distinct = append(distinct, t.Storage())
	}
	index := make([]uint32, len(sd.names))
	for i := range sd.names {
		s, _ := sd.place(i)
		// Usually all tensors are in one slab.
		if i > 0 && s == distinct[index[i-1]] {
			index[i] = index[i-1]
			continue
		}
		p, known := position[s]
		if !known {
			p = uint32(len(distinct))
			position[s] = p
			distinct = append(distinct, s)
		}
		index[i] = p
	}
	return distinct, index
}

// Bytes returns the size of all tensors in bytes, with tied ones counted once; on overflow, which expanded views can
// cause, the largest number.
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
		n, _ := spec.ByteLen() // validated when the tensor was created
		if n > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += n
	}
	return sum
}

// Alias returns another owned state dict over the same storages, with the same names and metadata.
func (sd *StateDict) Alias() *StateDict {
	c := &StateDict{Metadata: maps.Clone(sd.Metadata), names: sd.Names(), digests: slices.Clone(sd.digests), entries: sd.entries, tensors: make([]*tensor.Tensor, len(sd.names))}
	for i := range c.tensors {
		c.tensors[i] = storages.Keep(sd.at(i).Alias())
	}
	for _, t := range sd.extra {
		c.extra = append(c.extra, t.Alias())
	}
	c.index, _ = indexNames(c.names)
	return c
}

// Closed reports whether the state dict was closed, or contains a tensor that was closed before Set. Another reference may
// still hold the memory.
func (sd *StateDict) Closed() bool {
	if sd == nil {
		return false
	}
	if sd.views != nil {
		return sd.views.closed.Load()
	}
	return slices.ContainsFunc(sd.tensors, (*tensor.Tensor).Closed)
}

// Close closes all tensors and returns the first error. The memory of a storage is freed with its last tensor. Names
// and specs remain readable. A second Close, and Close of nil, return nil.
func (sd *StateDict) Close() error {
	if sd == nil {
		return nil
	}
	var first error
	if sd.views != nil {
		first = sd.views.close()
	}
	for _, tensors := range [...][]*tensor.Tensor{sd.tensors, sd.extra} {
		for _, t := range tensors {
			if err := storages.End(t); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}
