package tensor

import "fmt"

// derive returns a view of t. It takes ownership of the slices of spec.
func (t *Tensor) derive(spec Spec) (*Tensor, error) {
	if t.Closed() || t.storage.Refs() == 0 {
		return nil, t.closedError()
	}
	v := &Tensor{parent: t}
	if err := v.init(t.storage, &spec); err != nil {
		return nil, err
	}
	return v, nil
}

// own returns a deep copy of the spec with the strides filled in.
func (t *Tensor) own() Spec {
	s := t.spec
	s.Shape, s.Strides = s.Shape.Clone(), s.filled().Clone()
	return s
}

// dim resolves a dimension; negative ones count from the end.
func (t *Tensor) dim(d int) (int, error) {
	rank := t.Rank()
	if d < -rank || d >= rank {
		return 0, fmt.Errorf("%w: dimension %d of shape %v", ErrIndex, d, t.spec.Shape)
	}
	if d < 0 {
		d += rank
	}
	return d, nil
}

// advance moves the offset of s by the given elements. It fails if an element of a packed type would not begin on a
// byte, or one of a block-quantised type not on a block.
func (s *Spec) advance(elements int64) error {
	if s.DType.Quantized() {
		return s.advanceBlocks(elements)
	}
	bits := int64(s.DType.BitSize())
	if bits >= 8 {
		s.ByteOffset += elements * (bits / 8)
		return nil
	}
	// Eight elements fill whole bytes.
	if rest := elements % 8 * bits; rest%8 != 0 {
		return fmt.Errorf("%w: element %d of a %v tensor does not begin on a byte", ErrNotView, elements, s.DType)
	}
	s.ByteOffset += elements/8*bits + elements%8*bits/8
	return nil
}

// Narrow returns a view of the elements start to start+length-1 of one dimension. A negative dim or start counts
// from the end. Errors are [ErrIndex], and [ErrNotView] if packed elements would not begin on a byte.
func (t *Tensor) Narrow(dim int, start, length int64) (*Tensor, error) {
	d, err := t.dim(dim)
	if err != nil {
		return nil, err
	}
	size := t.spec.Shape[d]
	if start < 0 && start >= -size {
		start += size
	}
	if start < 0 || start > size || length < 0 || length > size-start {
		return nil, fmt.Errorf("%w: %d elements from %d in dimension %d of shape %v", ErrIndex, length, start, d, t.spec.Shape)
	}
	s := t.own()
	s.Shape[d] = length
	// An empty view keeps the offset: its start may be behind the end of the storage.
	if length > 0 && t.elements > 0 {
		if err := s.advance(start * s.Strides[d]); err != nil {
			return nil, err
		}
	}
	return t.derive(s)
}

// Select returns a view without one dimension, at an index of it. A negative dim or index counts from the end.
// It returns the errors of Narrow.
func (t *Tensor) Select(dim int, index int64) (*Tensor, error) {
	d, err := t.dim(dim)
	if err != nil {
		return nil, err
	}
	size := t.spec.Shape[d]
	if index < -size || index >= size {
		return nil, fmt.Errorf("%w: index %d in dimension %d of shape %v", ErrIndex, index, d, t.spec.Shape)
	}
	if index < 0 {
		index += size
	}
	s := t.own()
	if t.elements > 0 {
		if err := s.advance(index * s.Strides[d]); err != nil {
			return nil, err
		}
	}
	s.Shape = append(s.Shape[:d], s.Shape[d+1:]...)
	s.Strides = append(s.Strides[:d], s.Strides[d+1:]...)
	return t.derive(s)
}

// Transpose returns a view with two dimensions swapped. Errors are [ErrIndex].
func (t *Tensor) Transpose(dim0, dim1 int) (*Tensor, error) {
	a, err := t.dim(dim0)
	if err != nil {
		return nil, err
	}
	b, err := t.dim(dim1)
	if err != nil {
		return nil, err
	}
	s := t.own()
	s.Shape[a], s.Shape[b] = s.Shape[b], s.Shape[a]
	s.Strides[a], s.Strides[b] = s.Strides[b], s.Strides[a]
	return t.derive(s)
}

// Permute returns a view with reordered dimensions: dimension i of the view is dimension dims[i] of t. Errors
// are [ErrIndex], also if dims does not name each dimension once.
func (t *Tensor) Permute(dims ...int) (*Tensor, error) {
	s := t.own()
	if len(dims) != len(s.Shape) {
		return nil, fmt.Errorf("%w: %d dimensions for shape %v", ErrIndex, len(dims), t.spec.Shape)
	}
	old, seen := t.spec.filled(), uint64(0) // MaxRank bits
	for i, dim := range dims {
		d, err := t.dim(dim)
		if err != nil {
			return nil, err
		}
		if seen&(1<<d) != 0 {
			return nil, fmt.Errorf("%w: dimension %d is named twice in %v", ErrIndex, d, dims)
		}
		seen |= 1 << d
		s.Shape[i], s.Strides[i] = t.spec.Shape[d], old[d]
	}
	return t.derive(s)
}

// Squeeze returns a view without dimensions of size 1: the named ones (named ones of another size stay), or all
// if none is named. Errors are [ErrIndex].
func (t *Tensor) Squeeze(dims ...int) (*Tensor, error) {
	drop := ^uint64(0)
	if len(dims) > 0 {
		drop = 0
	}
	for _, dim := range dims {
		d, err := t.dim(dim)
		if err != nil {
			return nil, err
		}
		drop |= 1 << d
	}
	s := t.own()
	kept := 0
	for d, size := range t.spec.Shape {
		if size == 1 && drop&(1<<d) != 0 {
			continue
		}
		s.Shape[kept], s.Strides[kept] = size, s.Strides[d]
		kept++
	}
	s.Shape, s.Strides = s.Shape[:kept], s.Strides[:kept]
	return t.derive(s)
}

// Unsqueeze returns a view with a new dimension of size 1 before dimension dim; dim may be the rank, for the
// last place, and negative ones count from there. Errors are [ErrIndex], and [ErrShape] for more than [MaxRank]
// dimensions.
func (t *Tensor) Unsqueeze(dim int) (*Tensor, error) {
	rank := t.Rank()
	if dim < -rank-1 || dim > rank {
		return nil, fmt.Errorf("%w: new dimension %d of shape %v", ErrIndex, dim, t.spec.Shape)
	}
	if dim < 0 {
		dim += rank + 1
	}
	s, old := t.spec, t.spec.filled()
	s.Shape, s.Strides = make(Shape, 0, rank+1), make(Strides, 0, rank+1)
	s.Shape = append(append(append(s.Shape, t.spec.Shape[:dim]...), 1), t.spec.Shape[dim:]...)
	s.Strides = append(append(append(s.Strides, old[:dim]...), 1), old[dim:]...)
	return t.derive(s)
}

// Expand returns a view of the given shape in which dimensions of size 1 are repeated without a copy (stride 0).
// The shape may have more dimensions in front; -1 keeps a size. An expanded tensor cannot be written. Errors are
// [ErrShape] and [ErrOverflow].
func (t *Tensor) Expand(shape Shape) (*Tensor, error) {
	front := len(shape) - t.Rank()
	if front < 0 {
		return nil, fmt.Errorf("%w: shape %v has more dimensions than %v", ErrShape, t.spec.Shape, shape)
	}
	s, old := t.spec, t.spec.filled()
	s.Shape, s.Strides = shape.Clone(), make(Strides, len(shape))
	for i := range s.Shape {
		switch {
		case i >= front && (s.Shape[i] == -1 || s.Shape[i] == t.spec.Shape[i-front]):
			s.Shape[i], s.Strides[i] = t.spec.Shape[i-front], old[i-front]
		case i >= front && t.spec.Shape[i-front] != 1 || s.Shape[i] < 0:
			return nil, fmt.Errorf("%w: %v cannot be expanded to %v", ErrShape, t.spec.Shape, shape)
		}
	}
	return t.derive(s)
}
