package tensor

import "fmt"

// Reshape returns a view of the same elements in row-major order with another shape; one size may be -1 and is
// inferred. It never copies: if the strides of t do not allow the view, it returns [ErrNotView], and Reshape of a Copy
// works. Other errors are [ErrShape] and [ErrOverflow].
func (t *Tensor) Reshape(shape Shape) (*Tensor, error) {
	shape, err := t.inferSize(shape)
	if err != nil {
		return nil, err
	}
	s := t.spec
	s.Shape = shape
	if s.Strides != nil {
		var ok bool
		if s.Strides, ok = restride(t.spec.Shape, t.spec.Strides, shape); !ok {
			return nil, fmt.Errorf("%w: shape %v with strides %v as %v; Copy it first",
				ErrNotView, t.spec.Shape, t.spec.Strides, shape)
		}
	}
	return t.derive(s)
}

// inferSize returns a copy of shape with -1 replaced, checked against the elements of t.
func (t *Tensor) inferSize(shape Shape) (Shape, error) {
	shape = shape.Clone()
	unknown := -1
	for i, size := range shape {
		if size != -1 {
			continue
		}
		if unknown >= 0 {
			return nil, fmt.Errorf("%w: %v has more than one -1", ErrShape, shape)
		}
		unknown, shape[i] = i, 1
	}
	n, err := shape.NumElements()
	if err != nil {
		return nil, err
	}
	if unknown >= 0 {
		if n == 0 || t.elements%n != 0 {
			return nil, fmt.Errorf("%w: the -1 of a new shape for %v cannot be worked out", ErrShape, t.spec.Shape)
		}
		shape[unknown] = t.elements / n
		n = t.elements
	}
	if n != t.elements {
		return nil, fmt.Errorf("%w: shape %v has %d elements, %v has %d", ErrShape, shape, n, t.spec.Shape, t.elements)
	}
	return shape, nil
}

// restride returns strides for a new shape over the elements of an old one, or false. Old dimensions without gaps
// between them form a run, which can be divided freely; no new dimension may span two runs. Both shapes have the same
// number of elements, at least one: empty tensors are contiguous and not passed here.
func restride(shape Shape, strides Strides, want Shape) (Strides, bool) {
	out := make(Strides, len(want))
	next := len(want) - 1
	for last := len(shape) - 1; last >= 0; {
		first, size := last, shape[last]
		for first > 0 && (shape[first-1] == 1 || strides[first-1] == size*runStep(shape, strides, first, last)) {
			first--
			size *= shape[first]
		}
		step := runStep(shape, strides, first, last)
		for next >= 0 && (size > 1 || want[next] == 1) {
			if size%want[next] != 0 {
				return nil, false
			}
			out[next] = step
			step *= want[next]
			size /= want[next]
			next--
		}
		if size != 1 {
			return nil, false
		}
		last = first - 1
	}
	for ; next >= 0; next-- { // only sizes of 1 are left
		out[next] = 1
	}
	return out, true
}

// runStep returns the stride of the innermost dimension of a run that is not of size 1; strides of size 1 are
// meaningless.
func runStep(shape Shape, strides Strides, first, last int) int64 {
	for d := last; d >= first; d-- {
		if shape[d] != 1 {
			return strides[d]
		}
	}
	return 1
}

// View returns a view of the same bytes with another data type, by PyTorch's rule: if the element sizes
// differ, the last dimension must have stride 1, and its size changes so that the bytes stay the same. For a larger
// type, the other strides and the last size must be whole multiples. A block-quantised type can be viewed as Uint8 and
// back. Errors are [ErrDType] and [ErrNotView].
func (t *Tensor) View(dt DType) (*Tensor, error) {
	if !dt.Valid() {
		return nil, fmt.Errorf("%w: %v is not known", ErrDType, dt)
	}
	if t.spec.DType.Quantized() || dt.Quantized() {
		return t.viewBlocks(dt)
	}
	from, to := int64(t.spec.DType.BitSize()), int64(dt.BitSize())
	s := t.own()
	s.DType = dt
	if from == to {
		return t.derive(s)
	}
	last := t.Rank() - 1
	if last < 0 || (from%to != 0 && to%from != 0) {
		return nil, fmt.Errorf("%w: %v%v as %v", ErrNotView, t.spec.DType, t.spec.Shape, dt)
	}
	if s.Strides[last] != 1 && s.Shape[last] != 1 {
		return nil, fmt.Errorf("%w: %v as %v: the last stride is %d, not 1; Copy it first",
			ErrNotView, t.spec.DType, dt, s.Strides[last])
	}
	s.Strides[last] = 1
	ok := true
	if from > to {
		ok = s.split(from/to, last)
	} else {
		ok = s.join(to/from, last)
	}
	if !ok {
		return nil, fmt.Errorf("%w: %v%v with strides %v as %v: the sizes do not come out even",
			ErrNotView, t.spec.DType, t.spec.Shape, t.Strides(), dt)
	}
	return t.derive(s)
}

// split divides each element into n; it returns false if a size overflows.
func (s *Spec) split(n int64, last int) bool {
	var ok bool
	if s.Shape[last], ok = mul(s.Shape[last], n); !ok {
		return false
	}
	for d := range last {
		if s.Strides[d], ok = mul(s.Strides[d], n); !ok {
			return false
		}
	}
	return true
}

// join merges n elements into one; it returns false if a size is not a multiple.
func (s *Spec) join(n int64, last int) bool {
	if s.Shape[last]%n != 0 {
		return false
	}
	s.Shape[last] /= n
	for d := range last {
		if s.Strides[d]%n != 0 && s.Shape[d] > 1 {
			return false
		}
		s.Strides[d] /= n
	}
	return true
}
