package tensor

import "fmt"

// Spec describes a tensor inside a storage. It is a plain value that can be compared, sent and validated.
type Spec struct {
	// DType is the type of the elements.
	DType DType
	// Shape is the size of each dimension.
	Shape Shape
	// Strides are in elements; nil means row-major without gaps.
	Strides Strides
	// ByteOffset is the offset of the first element in the storage. It need not be aligned.
	ByteOffset int64
}

// extents holds the results of one pass over a spec.
type extents struct {
	elements   int64
	bytes      int64 // of the adjacent elements
	span       int64 // from the offset to the end of the last element
	contiguous bool
}

// Contiguous reports whether the elements are row-major without gaps. Empty tensors are, and the stride of a dimension
// of size 1 is ignored.
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

// ByteLen returns the size of the adjacent elements in bytes; elements under a byte are packed, and the end is rounded
// up to a byte or a block. Errors are [ErrDType], [ErrShape] and [ErrOverflow].
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

// Extent returns the number of bytes from ByteOffset to the end of the last element: ByteLen for a contiguous tensor, 0
// for an empty one. Errors are [ErrDType], [ErrShape] and [ErrOverflow].
func (s Spec) Extent() (int64, error) {
	e, err := s.measure()
	return e.span, err
}

// Validate checks the spec and that it fits a storage of the given size. An empty tensor must also begin inside the
// storage or at its end. Errors are [ErrDType], [ErrShape], [ErrOverflow] and [ErrBounds]. It allocates only on
// failure.
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
	if s.DType.Quantized() {
		return e, s.measureBlocks(&e)
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

// filled returns the strides, computed from the shape if they are nil.
func (s *Spec) filled() Strides {
	if s.Strides == nil {
		return s.Shape.Strides()
	}
	return s.Strides
}

// Clone returns a deep copy.
func (s Spec) Clone() Spec {
	s.Shape, s.Strides = s.Shape.Clone(), s.Strides.Clone()
	return s
}

// Equal reports whether both specs, which must be valid, name the same elements of a storage in the same order: nil
// strides equal row-major ones.
func (s Spec) Equal(o Spec) bool {
	if s.DType != o.DType || s.ByteOffset != o.ByteOffset || !s.Shape.Equal(o.Shape) {
		return false
	}
	if s.Contiguous() || o.Contiguous() {
		return s.Contiguous() == o.Contiguous()
	}
	return s.Strides.Equal(o.Strides)
}
