package tensor

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Views are many tensors of few storages, each made when it is first asked for: a model has thousands, and a program
// that attaches to one may use a part of them, or none before the next version. At is safe for concurrent use; Close
// needs the views for itself.
type Views struct {
	storages []*Storage
	at       func(i int) (storage uint32, spec *Spec)
	made     []atomic.Pointer[Tensor]
	closed   bool
}

// NewViews checks n specs against the storages that they are to be in, and makes no tensor yet. at returns the index of
// the storage and the spec of a tensor; it is called for each in order, and again when the tensor is made, and must
// return the same. The specs and the slices in them are borrowed for as long as the views or one of their tensors live
// and must not change. NewViews borrows the storages and adds a reference to each. An error is a [*ViewsError] that
// wraps one of those of [New], or [ErrIndex] for an index without a storage; then no reference was added.
func NewViews(storages []*Storage, n int, at func(i int) (storage uint32, spec *Spec)) (*Views, error) {
	for i := range n {
		index, spec := at(i)
		if int64(index) >= int64(len(storages)) {
			return nil, &ViewsError{i, fmt.Errorf("%w: storage %d of %d", ErrIndex, index, len(storages))}
		}
		if _, err := spec.check(storages[index].bytes); err != nil {
			return nil, &ViewsError{i, err}
		}
	}
	if n == 0 {
		storages = nil // without a tensor there is nothing to close
	}
	for i, s := range storages {
		if !s.retain(1) {
			closeStorages(storages[:i])
			return nil, fmt.Errorf("storage %d: %w", s.id, os.ErrClosed)
		}
	}
	return &Views{storages: storages, at: at, made: make([]atomic.Pointer[Tensor], n)}, nil
}

// closeStorages gives back what was retained a moment ago, by a caller that holds the storages itself.
func closeStorages(storages []*Storage) {
	for _, s := range storages {
		_ = s.Close()
	}
}

// Len is how many tensors there are.
func (v *Views) Len() int { return len(v.made) }

// At returns tensor i, borrowed: always the same one, closed if the views were.
func (v *Views) At(i int) *Tensor {
	if t := v.made[i].Load(); t != nil {
		return t
	}
	index, spec := v.at(i)
	t := new(Tensor)
	// It was checked by NewViews, so it fits.
	_ = t.init(v.storages[index], spec)
	if v.closed || !t.storage.retain(1) {
		t.closed.Store(true)
	}
	if !v.made[i].CompareAndSwap(nil, t) {
		_ = t.Close()
	}
	return v.made[i].Load()
}

// Take is At for tensors that are to live longer than the views: the caller closes it, and Close of the views does not.
// It needs the views for itself, and is called once for a tensor.
func (v *Views) Take(i int) *Tensor {
	t := v.At(i)
	v.made[i].Store(nil)
	return t
}

// Place is where tensor i is, without making it. The storage is borrowed, and the slices of the spec are shared.
// Strides is nil where the tensor is contiguous.
func (v *Views) Place(i int) (*Storage, Spec) {
	index, spec := v.at(i)
	s := *spec
	if s.Contiguous() {
		s.Strides = nil
	}
	return v.storages[index], s
}

// Close closes the tensors that were made and gives back the references to the storages. It returns the first error. A
// second Close is nil.
func (v *Views) Close() error {
	if v.closed {
		return nil
	}
	v.closed = true
	var first error
	for i := range v.made {
		if t := v.made[i].Load(); t != nil {
			if err := t.Close(); err != nil && first == nil {
				first = err
			}
		}
	}
	for _, s := range v.storages {
		if err := s.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
