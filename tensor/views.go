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

// ViewPlan is a list of specs that were checked against the sizes of the storages that they are to be in. Views are
// made of it without another look at a spec, so that programs which attach to the same model again and again pay for
// its thousands of tensors once. It is safe for concurrent use.
type ViewPlan struct {
	sizes []int64
	n     int
	at    func(i int) (storage uint32, spec *Spec)
}

// PlanViews checks n specs against storages of the given sizes, in bytes. It borrows sizes and at for as long as the
// plan or views of it live. at returns the index of the storage and the spec of a tensor; it is called for each in
// order, and again when the tensor is made, and must return the same. The specs and the slices in them are borrowed for
// as long as the plan, views of it or one of their tensors live, and must not change. An error is a [*ViewsError] that
// wraps one of those of [New], or [ErrIndex] for an index without a storage.
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

// Over returns the views of a plan over storages, and makes no tensor yet. It borrows the storages and adds a reference
// to each. Errors are [ErrBounds] where their number or the size of one is not that of the plan, and [os.ErrClosed];
// then no reference was added.
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
		storages = nil // without a tensor there is nothing to close
	}
	for i, s := range storages {
		if !s.retain(1) {
			closeStorages(storages[:i])
			return nil, fmt.Errorf("storage %d: %w", s.id, os.ErrClosed)
		}
	}
	return &Views{storages: storages, at: p.at, made: make([]atomic.Pointer[Tensor], p.n)}, nil
}

// NewViews is [PlanViews] for the sizes of the storages, and the views over them. An error is one of either.
func NewViews(storages []*Storage, n int, at func(i int) (storage uint32, spec *Spec)) (*Views, error) {
	sizes := make([]int64, len(storages))
	for i, s := range storages {
		sizes[i] = s.bytes
	}
	plan, err := PlanViews(sizes, n, at)
	if err != nil {
		return nil, err
	}
	return plan.Over(storages)
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
	// It was checked by PlanViews, so it fits.
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

// Storage is the storage at an index, borrowed.
func (v *Views) Storage(index int) *Storage { return v.storages[index] }

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
