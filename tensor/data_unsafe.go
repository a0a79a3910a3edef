package tensor

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
)

// bigEndian reports whether this processor's byte order differs from that of tensors.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

var errBigEndian = &driver.UnsupportedError{Feature: "typed access", Requires: "a little-endian processor"}

// Data returns the elements of a contiguous tensor in host memory in row-major order, without a copy: writing to the
// slice writes to the tensor. T must match the data type, see [DTypeOf]; a Bool tensor is read as uint8. The slice is
// valid until t is closed. Using it later crashes the process, and so does writing to it if the memory is not Writable.
// If t becomes unreachable without Close, the memory stays mapped until the process ends ([driver.Leaks]), because the
// garbage collector cannot see users of the slice.
//
// Errors are [ErrDType], [ErrNotContiguous], [ErrAlignment] for an address that T does not allow, [os.ErrClosed], and
// [driver.UnsupportedError] for memory that the processor cannot address.
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

// cast converts bytes to elements. The bytes hold a whole number of elements.
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

// bytesOf returns elements as the bytes that are stored.
func bytesOf[T Element](values []T) ([]byte, error) {
	var zero T
	if bigEndian && unsafe.Sizeof(zero) > 1 {
		return nil, errBigEndian
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero))), nil
}
