//go:build linux

package ort

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// DType is an ONNX element type, numbered as in TensorProto.DataType.
type DType int32

// Element types of fixed width.
const (
	Float32  DType = 1
	Uint8    DType = 2
	Int8     DType = 3
	Uint16   DType = 4
	Int16    DType = 5
	Int32    DType = 6
	Int64    DType = 7
	Bool     DType = 9
	Float16  DType = 10
	Float64  DType = 11
	Uint32   DType = 12
	Uint64   DType = 13
	BFloat16 DType = 16
)

// Size returns the size of an element in bytes, or 0 for an unsupported type.
func (d DType) Size() int64 {
	switch d {
	case Uint8, Int8, Bool:
		return 1
	case Uint16, Int16, Float16, BFloat16:
		return 2
	case Float32, Int32, Uint32:
		return 4
	case Int64, Float64, Uint64:
		return 8
	}
	return 0
}

// Tensor is a row-major array in memory. Data is in the machine's byte order.
type Tensor struct {
	DType DType
	Shape []int64
	Data  []byte
}

// Floats returns a float32 tensor over values, which it shares.
func Floats(shape []int64, values []float32) Tensor {
	return Tensor{Float32, shape, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))}
}

// Float32s returns the elements of a float32 tensor, sharing its memory.
func (t Tensor) Float32s() []float32 {
	if t.DType != Float32 || len(t.Data) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&t.Data[0])), len(t.Data)/4)
}

// Bytes returns the size that the type and shape require. It fails if they are invalid or the size overflows.
func (t Tensor) Bytes() (int64, error) {
	n := t.DType.Size()
	if n == 0 {
		return 0, fmt.Errorf("element type %d is not supported", t.DType)
	}
	for _, d := range t.Shape {
		if d < 0 || d > 0 && n > math.MaxInt64/d {
			return 0, fmt.Errorf("shape %v is invalid", t.Shape)
		}
		n *= d
	}
	return n, nil
}

// newValue returns a value over the tensor's memory, which must stay in place until the value is released.
func (l *Library) newValue(t Tensor) (value uintptr, err error) {
	n, err := t.Bytes()
	if err != nil {
		return 0, err
	}
	if n != int64(len(t.Data)) {
		return 0, fmt.Errorf("%d bytes for shape %v, which has %d", len(t.Data), t.Shape, n)
	}
	shape := append(t.Shape[:len(t.Shape):len(t.Shape)], 0) // not empty
	err = l.call(createTensorWithData, l.memory, uintptr(unsafe.Pointer(unsafe.SliceData(t.Data))), uintptr(n),
		uintptr(unsafe.Pointer(&shape[0])), uintptr(len(t.Shape)), uintptr(t.DType), uintptr(unsafe.Pointer(&value)))
	runtime.KeepAlive(t.Data)
	return value, err
}

// copyValue copies a value of the library.
func (l *Library) copyValue(value uintptr) (Tensor, error) {
	var info, rank, data uintptr
	var dtype int32
	if err := l.call(getTensorTypeAndShape, value, uintptr(unsafe.Pointer(&info))); err != nil {
		return Tensor{}, err
	}
	defer l.release(releaseTensorTypeAndShapeInfo, info)
	if err := l.call(getTensorElementType, info, uintptr(unsafe.Pointer(&dtype))); err != nil {
		return Tensor{}, err
	}
	if err := l.call(getDimensionsCount, info, uintptr(unsafe.Pointer(&rank))); err != nil {
		return Tensor{}, err
	}
	t := Tensor{DType: DType(dtype), Shape: make([]int64, rank)}
	if rank > 0 {
		if err := l.call(getDimensions, info, uintptr(unsafe.Pointer(&t.Shape[0])), rank); err != nil {
			return Tensor{}, err
		}
	}
	n, err := t.Bytes()
	if err != nil {
		return Tensor{}, err
	}
	if err := l.call(getTensorMutableData, value, uintptr(unsafe.Pointer(&data))); err != nil {
		return Tensor{}, err
	}
	t.Data = make([]byte, n)
	if n > 0 {
		copy(t.Data, unsafe.Slice((*byte)(pointer(data)), n))
	}
	return t, nil
}

// releaseValues releases values and ignores 0.
func (l *Library) releaseValues(values []uintptr) {
	for _, value := range values {
		l.release(releaseValue, value)
	}
}
