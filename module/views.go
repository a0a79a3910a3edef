package module

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/internal/storages"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// views are the tensors of a manifest over its storages, each created on first use. A model has thousands of tensors,
// and a client may use only some of them before the next version. at and close are safe for concurrent use.
type views struct {
	storages []*tensor.Storage
	specs    []TensorSpec // valid for the sizes of the storages
	made     []atomic.Pointer[tensor.Tensor]
	closed   atomic.Bool
}

// newViews returns views of validated specs without creating tensors. It borrows the storages, which have the sizes that
// the specs were validated for, and adds a reference to each.
func newViews(specs []TensorSpec, over []*tensor.Storage) (*views, error) {
	if len(specs) == 0 {
		over = nil // without tensors there is nothing to close
	}
	for i, s := range over {
		if s.Retain().Refs() == 0 {
			closeStorages(over[:i])
			return nil, fmt.Errorf("storage %d: %w", s.ID(), os.ErrClosed)
		}
	}
	return &views{storages: over, specs: specs, made: make([]atomic.Pointer[tensor.Tensor], len(specs))}, nil
}

// closeStorages releases references of a caller that holds the storages itself.
func closeStorages(storages []*tensor.Storage) {
	for _, s := range storages {
		_ = s.Close()
	}
}

// at returns tensor i, borrowed: always the same one, closed if the views were.
func (v *views) at(i int) *tensor.Tensor {
	if t := v.made[i].Load(); t != nil {
		return t
	}
	of := &v.specs[i]
	t := storages.View(v.storages[of.Storage], &of.Spec)
	if !v.made[i].CompareAndSwap(nil, t) {
		_ = storages.End(t) // the other one has a reference
		return v.made[i].Load()
	}
	if v.closed.Load() { // perhaps before this tensor was in the list
		_ = storages.End(t) // close returns the errors of the memory
	}
	return t
}

// take returns tensor i for a caller that ends it. It requires exclusive access and is called once for each tensor.
func (v *views) take(i int) *tensor.Tensor {
	t := v.at(i)
	v.made[i].Store(nil)
	return t
}

// place returns the storage and the spec of tensor i without creating it. Strides is nil if the tensor is contiguous.
func (v *views) place(i int) (*tensor.Storage, tensor.Spec) {
	of := &v.specs[i]
	s := of.Spec
	if s.Contiguous() {
		s.Strides = nil
	}
	return v.storages[of.Storage], s
}

// close closes the tensors that were made and releases the references to the storages. It returns the first error. A
// second close returns nil.
func (v *views) close() error {
	if v.closed.Swap(true) {
		return nil
	}
	var first error
	for i := range v.made {
		if t := v.made[i].Load(); t != nil {
			if err := storages.End(t); err != nil && first == nil {
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
