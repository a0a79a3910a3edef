package tensor

import "fmt"

// Spec describes a tensor inside a storage. It is a plain value that can be compared, sent and refused.
type Spec struct {
	// DType is the type of the elements.
	DType DType
	// Shape is the size of each dimension.
	Shape Shape
	// Strides are in elements; nil means row-major without gaps.
	Strides Strides
	// ByteOffset is where the first element begins in the storage. Any offset will do; none has to be aligned.
	ByteOffset int64
}

// extents is what one pass over a spec finds out.
type extents struct {
	elements   int64
	bytes      int64 // of the elements side by side
	span       int64 // bytes from the offset to behind the last element touched
	contiguous bool
}

// Contiguous reports whether the elements lie row-major without gaps. A tensor without elements does, and the stride of
// a dimension of size 1 does not matter.
func (s Spec) Contiguous() bool {
	if s.Strides == nil {
		return true
	}
	return len(s.Strides) == len(s.Shape) && rowMajor(s.Shape, s.Strides)
}

func rowMajor(shape Shape, strides Strides) bool {
	step, contiguous := int64(1), true
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 0 {
			return true
		}
		if shape[i] != 1 && strides[i] != step {
			contiguous = false
		}
		step *= shape[i]
	}
	return contiguous
}

// ByteLen is the size of the elements side by side, in bytes; elements under a byte are packed and the end rounded up.
// Errors are [ErrDType], [ErrShape] and [ErrOverflow].
func (s Spec) ByteLen() (int64, error) {
	n, err := s.Shape.NumElements()
	if err != nil {
		return 0, err
	}
	return s.byteLen(n)
}

func (s *Spec) byteLen(elements int64) (int64, error) {
	if !s.DType.Valid() {
		return 0, fmt.Errorf("%w: %v is not known", ErrDType, s.DType)
	}
	size, ok := s.DType.bytesFor(elements)
	if !ok {
		return 0, fmt.Errorf("%w: bytes of %v%v", ErrOverflow, s.DType, s.Shape)
	}
	return size, nil
}

// Extent is the number of bytes from ByteOffset to behind the last element that the tensor touches: ByteLen where it is
// contiguous, 0 where it has no elements. Errors are [ErrDType], [ErrShape] and [ErrOverflow].
func (s Spec) Extent() (int64, error) {
	e, err := s.measure()
	return e.span, err
}

// Validate checks the spec by itself and against a storage of so many bytes. A tensor without elements has to begin
// inside the storage or at its end too. Errors are [ErrDType], [ErrShape], [ErrOverflow] and [ErrBounds]. It allocates
// nothing unless it fails.
func (s Spec) Validate(storageBytes int64) error {
	_, err := s.check(storageBytes)
	return err
}

func (s *Spec) check(storageBytes int64) (extents, error) {
	e, err := s.measure()
	if err != nil {
		return e, err
	}
	if s.ByteOffset < 0 || s.ByteOffset > storageBytes || e.span > storageBytes-s.ByteOffset {
		return e, fmt.Errorf("%w: %v%v takes %d bytes from offset %d, the storage has %d",
			ErrBounds, s.DType, s.Shape, e.span, s.ByteOffset, storageBytes)
	}
	return e, nil
}

func (s *Spec) measure() (e extents, err error) {
	if e.elements, err = s.Shape.NumElements(); err != nil {
		return e, err
	}
	if e.bytes, err = s.byteLen(e.elements); err != nil {
		return e, err
	}
	if s.Strides == nil {
		e.span, e.contiguous = e.bytes, true
		return e, nil
	}
	if len(s.Strides) != len(s.Shape) {
		return e, fmt.Errorf("%w: %d strides for %d dimensions", ErrShape, len(s.Strides), len(s.Shape))
	}
	last := int64(0)
	for i, stride := range s.Strides {
		if stride < 0 {
			return e, fmt.Errorf("%w: strides %v have a negative one", ErrShape, s.Strides)
		}
		reach, ok := mul(stride, max(s.Shape[i]-1, 0))
		if ok {
			last, ok = add(last, reach)
		}
		if !ok {
			return e, fmt.Errorf("%w: shape %v with strides %v", ErrOverflow, s.Shape, s.Strides)
		}
	}
	e.contiguous = rowMajor(s.Shape, s.Strides)
	if e.elements == 0 {
		return e, nil
	}
	end, ok := add(last, 1)
	if ok {
		e.span, ok = s.DType.bytesFor(end)
	}
	if !ok {
		return e, fmt.Errorf("%w: bytes of %v%v with strides %v", ErrOverflow, s.DType, s.Shape, s.Strides)
	}
	return e, nil
}

// filled returns the strides, made from the shape where they are nil.
func (s *Spec) filled() Strides {
	if s.Strides == nil {
		return s.Shape.Strides()
	}
	return s.Strides
}

// Clone returns a copy with slices of its own.
func (s Spec) Clone() Spec {
	s.Shape, s.Strides = s.Shape.Clone(), s.Strides.Clone()
	return s
}

// Equal reports whether both specs name the same elements of a storage in the same order: nil strides equal the
// row-major ones. Both have to be valid.
func (s Spec) Equal(o Spec) bool {
	if s.DType != o.DType || s.ByteOffset != o.ByteOffset || !s.Shape.Equal(o.Shape) {
		return false
	}
	if s.Contiguous() || o.Contiguous() {
		return s.Contiguous() == o.Contiguous()
	}
	return s.Strides.Equal(o.Strides)
}
