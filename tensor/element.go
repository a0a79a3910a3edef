package tensor

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Element is a Go type that holds one element of a data type, bit for bit. The packed types have none. A Bool tensor is
// read as uint8: its bytes may come from another process, and a Go bool other than 0 or 1 is undefined.
type Element interface {
	uint8 | int8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | float32 | float64 | complex64 | complex128 |
		F16 | BF16 | F8E4M3FN | F8E5M2 | F8E8M0FNU | F8E4M3FNUZ | F8E5M2FNUZ
}

// DTypeOf returns the data type that T holds.
func DTypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case uint8:
		return Uint8
	case int8:
		return Int8
	case int16:
		return Int16
	case uint16:
		return Uint16
	case int32:
		return Int32
	case uint32:
		return Uint32
	case int64:
		return Int64
	case uint64:
		return Uint64
	case float32:
		return Float32
	case float64:
		return Float64
	case complex64:
		return Complex64
	case complex128:
		return Complex128
	case F16:
		return Float16
	case BF16:
		return BFloat16
	case F8E4M3FN:
		return Float8E4M3FN
	case F8E5M2:
		return Float8E5M2
	case F8E8M0FNU:
		return Float8E8M0FNU
	case F8E4M3FNUZ:
		return Float8E4M3FNUZ
	default:
		return Float8E5M2FNUZ
	}
}

// holds returns nil if T matches the data type of t, otherwise an error.
func holds[T Element](t *Tensor) error {
	want := DTypeOf[T]()
	if want == t.spec.DType || (want == Uint8 && t.spec.DType == Bool) {
		return nil
	}
	return fmt.Errorf("%w: a %v tensor is not read as %v", ErrDType, t.spec.DType, want)
}

// RawData returns the bytes of a contiguous tensor in host memory without a copy; for packed types the last byte may
// hold bits behind the last element. The slice is valid until t is closed. Using it later crashes the process, and so
// does writing to it if the memory is not Writable. If t becomes unreachable without Close, the memory stays mapped
// until the process ends ([driver.Leaks]). Errors are [ErrNotContiguous], [os.ErrClosed], and [driver.UnsupportedError]
// for memory that the processor cannot address.
func RawData(t *Tensor) (data []byte, err error) {
	if err := t.hold(); err != nil {
		return nil, err
	}
	data, err = t.exposed()
	return data, errors.Join(err, t.storage.Close())
}

// exposed is RawData for a caller that holds the storage.
func (t *Tensor) exposed() ([]byte, error) {
	if !t.Contiguous() {
		return nil, fmt.Errorf("%w: shape %v with strides %v; Copy it first", ErrNotContiguous, t.spec.Shape, t.spec.Strides)
	}
	mapped, ok := t.storage.mem.(driver.Mapped)
	if !ok {
		return nil, &driver.UnsupportedError{
			Feature:  "direct access to memory of " + t.Device().Info().String(),
			Requires: "host memory: WriteTo, ReadBytes and Copy work on any",
		}
	}
	t.storage.exposed.Store(true)
	data := mapped.Data()
	if err := t.checkData(data); err != nil {
		return nil, err
	}
	return t.part(data), nil
}

// FromSlice returns an owned, row-major tensor of new memory on dev with a copy of values. Errors are [ErrShape] if
// shape has a different number of elements, and errors of [Zeros].
func FromSlice[T Element](dev driver.Device, shape Shape, values []T) (*Tensor, error) {
	n, err := shape.NumElements()
	if err != nil {
		return nil, err
	}
	if n != int64(len(values)) {
		return nil, fmt.Errorf("%w: %d values for shape %v", ErrShape, len(values), shape)
	}
	raw, err := bytesOf(values)
	if err != nil {
		return nil, err
	}
	t, err := Empty(dev, DTypeOf[T](), shape)
	if err != nil {
		return nil, err
	}
	if len(raw) == 0 {
		return t, nil
	}
	if _, err := t.storage.mem.WriteAt(raw, 0); err != nil {
		_ = t.Close() // best effort: the write's error is returned
		return nil, err
	}
	return t, nil
}

// FromBools is FromSlice for the data type Bool.
func FromBools(dev driver.Device, shape Shape, values []bool) (*Tensor, error) {
	bytes := make([]uint8, len(values))
	for i, v := range values {
		if v {
			bytes[i] = 1
		}
	}
	raw, err := FromSlice(dev, shape, bytes)
	if err != nil {
		return nil, err
	}
	raw.spec.DType = Bool // not shared yet
	return raw, nil
}

// At returns one element; negative indices count from the end. It reads memory of any device, one element per call. In host
// memory whose pages are all allocated, only the first call makes system calls. Errors are [ErrIndex], [ErrDType] and
// [os.ErrClosed].
func At[T Element](t *Tensor, index ...int64) (T, error) {
	var value [1]T
	if err := holds[T](t); err != nil {
		return value[0], err
	}
	offset, err := t.elementOffset(index)
	if err != nil {
		return value[0], err
	}
	raw, err := bytesOf(value[:])
	if err != nil {
		return value[0], err
	}
	if err := t.hold(); err != nil {
		return value[0], err
	}
	offset = t.spec.ByteOffset + offset*int64(len(raw))
	if done, err := t.copyMapped(raw, offset); done {
		return value[0], errors.Join(err, t.storage.Close())
	}
	separate := make([]T, 1) // escapes to the heap, unlike value
	bytes, err := bytesOf(separate)
	if err == nil {
		err = readFull(t.storage.mem, bytes, offset)
	}
	return separate[0], errors.Join(err, t.storage.Close())
}

// Item returns the element of a tensor with exactly one element, of any rank. It returns the errors of [At].
func Item[T Element](t *Tensor) (T, error) {
	if t.elements != 1 {
		var zero T
		return zero, fmt.Errorf("%w: a tensor of shape %v has %d elements, not one", ErrShape, t.spec.Shape, t.elements)
	}
	return At[T](t, make([]int64, t.Rank())...)
}

// elementOffset returns the distance of an element from the first one, in elements.
func (t *Tensor) elementOffset(index []int64) (int64, error) {
	if len(index) != t.Rank() {
		return 0, fmt.Errorf("%w: %d indices for shape %v", ErrIndex, len(index), t.spec.Shape)
	}
	offset, step := int64(0), int64(1)
	for d, i := range slices.Backward(index) {
		size := t.spec.Shape[d]
		if i < -size || i >= size {
			return 0, fmt.Errorf("%w: index %d in dimension %d of shape %v", ErrIndex, i, d, t.spec.Shape)
		}
		if i < 0 {
			i += size
		}
		if t.spec.Strides != nil {
			step = t.spec.Strides[d]
		}
		offset += i * step
		step *= size
	}
	return offset, nil
}
