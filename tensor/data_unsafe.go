package tensor

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
)

// bigEndian reports whether this processor stores numbers the other way round than tensors do.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

var errBigEndian = &driver.UnsupportedError{Feature: "typed access", Requires: "a little-endian processor"}

// Data returns the elements of a contiguous tensor in host memory, in row-major order, not a copy: a write to the slice
// is a write to the tensor. T has to be the type's own, see [DTypeOf]; a Bool tensor is read as uint8. The slice is
// valid until t is closed; using it later crashes the process, and so does writing it where the memory is not Writable.
// Where t is forgotten instead, the memory stays as it is until the process ends ([driver.Leaks]): the garbage
// collector does not see who has such a slice.
//
// Errors are [ErrDType], [ErrNotContiguous], [ErrAlignment] for a tensor at an address that T cannot have,
// [os.ErrClosed], and [driver.UnsupportedError] for memory that the processor does not address.
func Data[T Element](t *Tensor) ([]T, error) {
	if err := holds[T](t); err != nil {
		return nil, err
	}
	raw, err := RawData(t)
	if err != nil {
		return nil, err
	}
	return cast[T](raw)
}

// cast reads bytes as elements. The bytes hold a whole number of them.
func cast[T Element](raw []byte) ([]T, error) {
	var zero T
	if bigEndian && unsafe.Sizeof(zero) > 1 {
		return nil, errBigEndian
	}
	n := len(raw) / int(unsafe.Sizeof(zero))
	if n == 0 {
		return []T{}, nil
	}
	p := unsafe.Pointer(unsafe.SliceData(raw))
	if align := unsafe.Alignof(zero); uintptr(p)%align != 0 {
		return nil, fmt.Errorf("%w: %v at address %p needs a multiple of %d; Copy it first", ErrAlignment, DTypeOf[T](), p, align)
	}
	return unsafe.Slice((*T)(p), n), nil
}

// bytesOf reads elements as the bytes that they are stored in.
func bytesOf[T Element](values []T) ([]byte, error) {
	var zero T
	if bigEndian && unsafe.Sizeof(zero) > 1 {
		return nil, errBigEndian
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero))), nil
}
