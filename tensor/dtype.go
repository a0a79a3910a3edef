package tensor

import (
	"fmt"
	"strconv"
	"strings"
)

// DType is the type of a tensor's elements. Its numbers are part of the protocol and never change; 0 is invalid. The
// set is that of the safetensors format (safetensors/src/tensor.rs, Dtype) and Complex128.
type DType uint8

// The data types, named as PyTorch names them, in Go case.
const (
	// Bool is one byte for each element: 0 is false, anything else is true.
	Bool DType = 1
	// Uint8 is an unsigned integer of 8 bits.
	Uint8 DType = 2
	// Int8 is a signed integer of 8 bits.
	Int8 DType = 3
	// Int16 is a signed integer of 16 bits.
	Int16 DType = 4
	// Uint16 is an unsigned integer of 16 bits.
	Uint16 DType = 5
	// Int32 is a signed integer of 32 bits.
	Int32 DType = 6
	// Uint32 is an unsigned integer of 32 bits.
	Uint32 DType = 7
	// Int64 is a signed integer of 64 bits.
	Int64 DType = 8
	// Uint64 is an unsigned integer of 64 bits.
	Uint64 DType = 9
	// Float16 is IEEE 754 binary16.
	Float16 DType = 10
	// BFloat16 is the upper half of a Float32.
	BFloat16 DType = 11
	// Float32 is IEEE 754 binary32.
	Float32 DType = 12
	// Float64 is IEEE 754 binary64.
	Float64 DType = 13
	// Complex64 is two Float32, real part first.
	Complex64 DType = 14
	// Complex128 is two Float64, real part first. The safetensors format does not support it.
	Complex128 DType = 15
	// Float8E4M3FN is the OCP 8-bit float E4M3: no infinity, one NaN for each sign.
	Float8E4M3FN DType = 16
	// Float8E5M2 is the OCP 8-bit float E5M2, with infinities and NaNs as in IEEE 754.
	Float8E5M2 DType = 17
	// Float8E8M0FNU is the OCP MX scale: an exponent, no sign, no zero, one NaN.
	Float8E8M0FNU DType = 18
	// Float8E4M3FNUZ is E4M3 with bias 8, one NaN (0x80) and no negative zero.
	Float8E4M3FNUZ DType = 19
	// Float8E5M2FNUZ is E5M2 with bias 16, one NaN (0x80), no infinity and no negative zero.
	Float8E5M2FNUZ DType = 20
	// Float6E2M3FN is the OCP MX 6-bit float E2M3, packed; finite only.
	Float6E2M3FN DType = 21
	// Float6E3M2FN is the OCP MX 6-bit float E3M2, packed; finite only.
	Float6E3M2FN DType = 22
	// Float4E2M1FN is the OCP MX 4-bit float E2M1, packed, the first element in the low half of a byte; finite only.
	// PyTorch's float4_e2m1fn_x2 counts pairs; this type counts elements.
	Float4E2M1FN DType = 23

	dtypeEnd DType = 24
)

// kind groups data types by the way their values are read.
type kind uint8

const (
	kindBool kind = iota + 1
	kindInt
	kindUint
	kindFloat
	kindComplex
)

// dtypeInfo holds the properties of a data type. code is DLDataTypeCode of dlpack.h 1.1.
type dtypeInfo struct {
	name string
	bits uint8
	code uint8
	kind kind
}

var dtypes = [dtypeEnd]dtypeInfo{
	Bool:           {"bool", 8, 6, kindBool},
	Uint8:          {"uint8", 8, 1, kindUint},
	Int8:           {"int8", 8, 0, kindInt},
	Int16:          {"int16", 16, 0, kindInt},
	Uint16:         {"uint16", 16, 1, kindUint},
	Int32:          {"int32", 32, 0, kindInt},
	Uint32:         {"uint32", 32, 1, kindUint},
	Int64:          {"int64", 64, 0, kindInt},
	Uint64:         {"uint64", 64, 1, kindUint},
	Float16:        {"float16", 16, 2, kindFloat},
	BFloat16:       {"bfloat16", 16, 4, kindFloat},
	Float32:        {"float32", 32, 2, kindFloat},
	Float64:        {"float64", 64, 2, kindFloat},
	Complex64:      {"complex64", 64, 5, kindComplex},
	Complex128:     {"complex128", 128, 5, kindComplex},
	Float8E4M3FN:   {"float8_e4m3fn", 8, 10, kindFloat},
	Float8E5M2:     {"float8_e5m2", 8, 12, kindFloat},
	Float8E8M0FNU:  {"float8_e8m0fnu", 8, 14, kindFloat},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 8, 11, kindFloat},
	Float8E5M2FNUZ: {"float8_e5m2fnuz", 8, 13, kindFloat},
	Float6E2M3FN:   {"float6_e2m3fn", 6, 15, kindFloat},
	Float6E3M2FN:   {"float6_e3m2fn", 6, 16, kindFloat},
	Float4E2M1FN:   {"float4_e2m1fn", 4, 17, kindFloat},
}

// DTypes returns all data types in the order of their numbers. The caller owns the slice.
func DTypes() []DType {
	all := make([]DType, 0, dtypeEnd-1)
	for d := DType(1); d < dtypeEnd; d++ {
		all = append(all, d)
	}
	return all
}

// Valid reports whether d is a data type of this package.
func (d DType) Valid() bool { return d != 0 && d < dtypeEnd }

// BitSize returns the size of an element in bits, 4 or 6 for the packed types; 0 for an invalid type.
func (d DType) BitSize() int {
	if !d.Valid() {
		return 0
	}
	return int(dtypes[d].bits)
}

// String returns PyTorch's name without "torch.": "float32", "bfloat16", "float8_e4m3fn".
func (d DType) String() string {
	if !d.Valid() {
		return "dtype(" + strconv.Itoa(int(d)) + ")"
	}
	return dtypes[d].name
}

// DLPack returns the type as the three fields of DLDataType in dlpack.h 1.1; zeros for an invalid type.
func (d DType) DLPack() (code, bits uint8, lanes uint16) {
	if !d.Valid() {
		return 0, 0, 0
	}
	return dtypes[d].code, dtypes[d].bits, 1
}

// FromDLPack returns the type with these fields of DLDataType. Errors are [ErrDType]; vectors (lanes other than 1) are
// refused.
func FromDLPack(code, bits uint8, lanes uint16) (DType, error) {
	for d := DType(1); d < dtypeEnd; d++ {
		if dtypes[d].code == code && dtypes[d].bits == bits && lanes == 1 {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%w: DLPack code %d, %d bits, %d lanes is not known", ErrDType, code, bits, lanes)
}

// ParseDType parses the result of String, with or without the prefix "torch.". Errors are [ErrDType].
func ParseDType(name string) (DType, error) {
	short := strings.TrimPrefix(name, "torch.")
	for d := DType(1); d < dtypeEnd; d++ {
		if dtypes[d].name == short {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%w: %q is not known", ErrDType, name)
}

// IsFloat reports whether elements are real floating-point numbers, of any size.
func (d DType) IsFloat() bool { return d.Valid() && dtypes[d].kind == kindFloat }

// IsComplex reports whether elements are complex numbers.
func (d DType) IsComplex() bool { return d.Valid() && dtypes[d].kind == kindComplex }

// IsInteger reports whether elements are integers; Bool is not one.
func (d DType) IsInteger() bool {
	return d.Valid() && (dtypes[d].kind == kindInt || dtypes[d].kind == kindUint)
}

// packed reports whether several elements share a byte.
func (d DType) packed() bool { return d.BitSize() < 8 }

// bytesFor returns the size in bytes of n adjacent elements of d, rounded up to a byte; ok is false on overflow. n is
// not negative.
func (d DType) bytesFor(n int64) (size int64, ok bool) {
	bits := int64(d.BitSize())
	if bits < 8 {
		// Whole groups of eight elements fill whole bytes, so this cannot overflow.
		return n/8*bits + (n%8*bits+7)/8, true
	}
	return mul(n, bits/8)
}
