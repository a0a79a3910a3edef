package tensor

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Views are many tensors over few storages, each created on first use. A model has thousands of tensors, and a client
// may use only some of them before the next version. At is safe for concurrent use; Close requires exclusive access.
type Views struct {
	storages []*Storage
	at       func(i int) (storage uint32, spec *Spec)
	made     []atomic.Pointer[Tensor]
	closed   bool
}

// ViewPlan is a list of specs validated against the sizes of their storages. Views are created from it without another
// validation, so programs that attach the same model repeatedly validate it once. It is safe for concurrent use.
type ViewPlan struct {
	sizes []int64
	n     int
	at    func(i int) (storage uint32, spec *Spec)
}

// PlanViews validates n specs against storages of the given sizes in bytes. It borrows sizes and at while the plan or
// views of it exist. at returns the index of the storage and the spec of a tensor. It is called for each tensor in
// order, and again when the tensor is created, and must return the same values. The specs and their slices are borrowed
// while the plan, its views or their tensors exist, and must not change. An error is a [*ViewsError] that wraps an
// error of [New], or [ErrIndex] for an invalid index.
func PlanViews(sizes []int64, n int, at func(i int) (storage uint32, spec *Spec)) (*ViewPlan, error) {
	for i := range n {
		index, spec := at(i)
		if int64(index) >= int64(len(sizes)) {
			return nil, &ViewsError{i, fmt.Errorf("%w: storage %d of %d", ErrIndex, index, len(sizes))}
		}
		if _, err := spec.check(sizes[index]); err != nil {
			return nil, &ViewsError{i, err}
		}
	}
	return &ViewPlan{sizes, n, at}, nil
}

// Over returns the views of a plan over storages without creating tensors. It borrows the storages and adds a reference
// to each. If their number or sizes differ from the plan's, it returns [ErrBounds], for a closed storage
// [os.ErrClosed], and adds no reference.
func (p *ViewPlan) Over(storages []*Storage) (*Views, error) {
	if len(storages) != len(p.sizes) {
		return nil, fmt.Errorf("%w: %d storages, the views are of %d", ErrBounds, len(storages), len(p.sizes))
	}
	for i, s := range storages {
		if s.bytes != p.sizes[i] {
			return nil, fmt.Errorf("%w: storage %d has %d bytes, not %d", ErrBounds, i, s.bytes, p.sizes[i])
		}
	}
	if p.n == 0 {
		storages = nil // without tensors there is nothing to close
	}
	for i, s := range storages {
		if !s.retain(1) {
			closeStorages(storages[:i])
			return nil, fmt.Errorf("storage %d: %w", s.id, os.ErrClosed)
		}
	}
	return &Views{storages: storages, at: p.at, made: make([]atomic.Pointer[Tensor], p.n)}, nil
}

// closeStorages releases references of a caller that holds the storages itself.
func closeStorages(storages []*Storage) {
	for _, s := range storages {
		_ = s.Close()
	}
}

// Len returns the number of tensors.
func (v *Views) Len() int { return len(v.made) }

// At returns tensor i, borrowed: always the same one, closed if the views were.
func (v *Views) At(i int) *Tensor {
	if t := v.made[i].Load(); t != nil {
		return t
	}
	index, spec := v.at(i)
	t := new(Tensor)
	// PlanViews validated it.
	_ = t.init(v.storages[index], spec)
	if v.closed || !t.storage.retain(1) {
		t.closed.Store(true)
	}
	if !v.made[i].CompareAndSwap(nil, t) {
		_ = t.Close()
	}
	return v.made[i].Load()
}

// Take is At for tensors that outlive the views: the caller owns the tensor, and Close of the views does not close it.
// It requires exclusive access and is called once for each tensor.
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

// Storage is the storage at an index, borrowed.
func (v *Views) Storage(index int) *Storage { return v.storages[index] }

// Closed reports whether the views or one of their tensors were closed.
func (v *Views) Closed() bool {
	if v.closed {
		return true
	}
	for i := range v.made {
		if t := v.made[i].Load(); t != nil && t.Closed() {
			return true
		}
	}
	return false
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
