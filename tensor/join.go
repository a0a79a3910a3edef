package tensor

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Cat returns an owned, contiguous tensor of new memory on dev with the tensors concatenated along dimension dim; a
// negative dim counts from the end, and a nil dev is the device of the first. All tensors have one data type, and one
// shape except for dim. It borrows them. Errors are [ErrShape], also for no tensors, [ErrDType], [ErrIndex] for dim,
// and those of [Zeros] and [Tensor.CopyFrom].
func Cat(dev driver.Device, dim int, tensors ...*Tensor) (*Tensor, error) {
	if len(tensors) == 0 {
		return nil, fmt.Errorf("%w: there are no tensors to join", ErrShape)
	}
	first := tensors[0]
	dim, err := first.dim(dim)
	if err != nil {
		return nil, err
	}
	shape := first.spec.Shape.Clone()
	for _, t := range tensors[1:] {
		same := t.spec.Shape.Clone()
		if len(same) == len(shape) {
			shape[dim] += same[dim]
			same[dim] = first.spec.Shape[dim]
		}
		switch {
		case t.spec.DType != first.spec.DType:
			return nil, fmt.Errorf("%w: %v is joined to %v", ErrDType, t.spec.DType, first.spec.DType)
		case !same.Equal(first.spec.Shape) || shape[dim] < 0:
			return nil, fmt.Errorf("%w: %v is joined to %v along dimension %d", ErrShape, t.spec.Shape, first.spec.Shape, dim)
		}
	}
	if dev == nil {
		dev = first.Device()
	}
	return made(Empty(dev, first.spec.DType, shape))(func(joined *Tensor) error {
		at := int64(0)
		for _, t := range tensors {
			part, err := joined.Narrow(dim, at, t.spec.Shape[dim])
			if err != nil {
				return err
			}
			if err := part.CopyFrom(t); err != nil {
				return err
			}
			at += t.spec.Shape[dim]
		}
		return nil
	})
}

// Stack returns an owned, contiguous tensor of new memory on dev with the tensors stacked along a new dimension dim,
// from 0 to their rank; a negative dim counts from the end, and a nil dev is the device of the first. All tensors have
// one data type and one shape. It borrows them. It returns the errors of [Cat] and [Tensor.Unsqueeze].
func Stack(dev driver.Device, dim int, tensors ...*Tensor) (*Tensor, error) {
	slices := make([]*Tensor, 0, len(tensors))
	for _, t := range tensors {
		s, err := t.Unsqueeze(dim)
		if err != nil {
			return nil, err
		}
		slices = append(slices, s)
	}
	if dim < 0 && len(tensors) > 0 {
		dim += tensors[0].Rank() + 1
	}
	return Cat(dev, dim, slices...)
}

// Split returns views of t, each of size indices of dimension dim, and the last of the rest. There is at least one. Errors are [ErrShape] for a size that is not positive, and errors of [Tensor.Narrow].
func (t *Tensor) Split(dim int, size int64) (parts []*Tensor, err error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: parts of %d", ErrShape, size)
	}
	if dim, err = t.dim(dim); err != nil {
		return nil, err
	}
	n := t.spec.Shape[dim]
	for at := int64(0); ; at += size {
		part, err := t.Narrow(dim, at, min(size, n-at))
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		if n-at <= size {
			return parts, nil
		}
	}
}
