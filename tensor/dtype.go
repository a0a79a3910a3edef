package tensor

import (
	"fmt"
	"strconv"
	"strings"
)

// DType is the type of a tensor's elements. Its numbers are part of the protocol and never change; 0 is invalid. The
// set is that of the safetensors format (safetensors/src/tensor.rs, Dtype), Complex128, and the block-quantised types of
// the GGUF format, such as [Q4_0].
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
	kindBlock
)

// dtypeInfo holds the properties of a data type. code is DLDataTypeCode of dlpack.h 1.1.
type dtypeInfo struct {
	name string
	bits uint8
	code uint8
	kind kind
	// elements and bytes are the size of a block of a block-quantised type.
	elements, bytes uint16
}

var dtypes = [quantizedEnd]dtypeInfo{
	Bool:           {name: "bool", bits: 8, code: 6, kind: kindBool},
	Uint8:          {name: "uint8", bits: 8, code: 1, kind: kindUint},
	Int8:           {name: "int8", bits: 8, code: 0, kind: kindInt},
	Int16:          {name: "int16", bits: 16, code: 0, kind: kindInt},
	Uint16:         {name: "uint16", bits: 16, code: 1, kind: kindUint},
	Int32:          {name: "int32", bits: 32, code: 0, kind: kindInt},
	Uint32:         {name: "uint32", bits: 32, code: 1, kind: kindUint},
	Int64:          {name: "int64", bits: 64, code: 0, kind: kindInt},
	Uint64:         {name: "uint64", bits: 64, code: 1, kind: kindUint},
	Float16:        {name: "float16", bits: 16, code: 2, kind: kindFloat},
	BFloat16:       {name: "bfloat16", bits: 16, code: 4, kind: kindFloat},
	Float32:        {name: "float32", bits: 32, code: 2, kind: kindFloat},
	Float64:        {name: "float64", bits: 64, code: 2, kind: kindFloat},
	Complex64:      {name: "complex64", bits: 64, code: 5, kind: kindComplex},
	Complex128:     {name: "complex128", bits: 128, code: 5, kind: kindComplex},
	Float8E4M3FN:   {name: "float8_e4m3fn", bits: 8, code: 10, kind: kindFloat},
	Float8E5M2:     {name: "float8_e5m2", bits: 8, code: 12, kind: kindFloat},
	Float8E8M0FNU:  {name: "float8_e8m0fnu", bits: 8, code: 14, kind: kindFloat},
	Float8E4M3FNUZ: {name: "float8_e4m3fnuz", bits: 8, code: 11, kind: kindFloat},
	Float8E5M2FNUZ: {name: "float8_e5m2fnuz", bits: 8, code: 13, kind: kindFloat},
	Float6E2M3FN:   {name: "float6_e2m3fn", bits: 6, code: 15, kind: kindFloat},
	Float6E3M2FN:   {name: "float6_e3m2fn", bits: 6, code: 16, kind: kindFloat},
	Float4E2M1FN:   {name: "float4_e2m1fn", bits: 4, code: 17, kind: kindFloat},

	Q4_0:    {name: "q4_0", kind: kindBlock, elements: 32, bytes: 18},
	Q4_1:    {name: "q4_1", kind: kindBlock, elements: 32, bytes: 20},
	Q5_0:    {name: "q5_0", kind: kindBlock, elements: 32, bytes: 22},
	Q5_1:    {name: "q5_1", kind: kindBlock, elements: 32, bytes: 24},
	Q8_0:    {name: "q8_0", kind: kindBlock, elements: 32, bytes: 34},
	Q8_1:    {name: "q8_1", kind: kindBlock, elements: 32, bytes: 36},
	Q2_K:    {name: "q2_k", kind: kindBlock, elements: 256, bytes: 84},
	Q3_K:    {name: "q3_k", kind: kindBlock, elements: 256, bytes: 110},
	Q4_K:    {name: "q4_k", kind: kindBlock, elements: 256, bytes: 144},
	Q5_K:    {name: "q5_k", kind: kindBlock, elements: 256, bytes: 176},
	Q6_K:    {name: "q6_k", kind: kindBlock, elements: 256, bytes: 210},
	Q8_K:    {name: "q8_k", kind: kindBlock, elements: 256, bytes: 292},
	IQ2_XXS: {name: "iq2_xxs", kind: kindBlock, elements: 256, bytes: 66},
	IQ2_XS:  {name: "iq2_xs", kind: kindBlock, elements: 256, bytes: 74},
	IQ3_XXS: {name: "iq3_xxs", kind: kindBlock, elements: 256, bytes: 98},
	IQ1_S:   {name: "iq1_s", kind: kindBlock, elements: 256, bytes: 50},
	IQ4_NL:  {name: "iq4_nl", kind: kindBlock, elements: 32, bytes: 18},
	IQ3_S:   {name: "iq3_s", kind: kindBlock, elements: 256, bytes: 110},
	IQ2_S:   {name: "iq2_s", kind: kindBlock, elements: 256, bytes: 82},
	IQ4_XS:  {name: "iq4_xs", kind: kindBlock, elements: 256, bytes: 136},
	IQ1_M:   {name: "iq1_m", kind: kindBlock, elements: 256, bytes: 56},
	TQ1_0:   {name: "tq1_0", kind: kindBlock, elements: 256, bytes: 54},
	TQ2_0:   {name: "tq2_0", kind: kindBlock, elements: 256, bytes: 66},
	MXFP4:   {name: "mxfp4", kind: kindBlock, elements: 32, bytes: 17},
	NVFP4:   {name: "nvfp4", kind: kindBlock, elements: 64, bytes: 36},
	Q1_0:    {name: "q1_0", kind: kindBlock, elements: 128, bytes: 18},
	Q2_0:    {name: "q2_0", kind: kindBlock, elements: 64, bytes: 18},
}

// DTypes returns all data types with separate elements, in the order of their numbers. The caller owns the slice. See
// [QuantizedDTypes] for the others.
func DTypes() []DType {
	all := make([]DType, 0, dtypeEnd-1)
	for d := DType(1); d < dtypeEnd; d++ {
		all = append(all, d)
	}
	return all
}

// Valid reports whether d is a data type of this package.
func (d DType) Valid() bool { return d < quantizedEnd && dtypes[d].name != "" }

// BitSize returns the size of an element in bits, 4 or 6 for the packed types; 0 for a block-quantised or an invalid
// type.
func (d DType) BitSize() int {
	if !d.Valid() {
		return 0
	}
	return int(dtypes[d].bits)
}

// String returns PyTorch's name without "torch.", such as "float32" or "float8_e4m3fn", or ggml's name of a
// block-quantised type in lower case, such as "q4_k".
func (d DType) String() string {
	if !d.Valid() {
		return "dtype(" + strconv.Itoa(int(d)) + ")"
	}
	return dtypes[d].name
}

// DLPack returns the type as the three fields of DLDataType in dlpack.h 1.1; zeros for a type that DLPack cannot
// describe: a block-quantised or an invalid one.
func (d DType) DLPack() (code, bits uint8, lanes uint16) {
	if !d.Valid() || d.Quantized() {
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
	for d := DType(1); d < quantizedEnd; d++ {
		if d.Valid() && dtypes[d].name == short {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%w: %q is not known", ErrDType, name)
}

// IsFloat reports whether elements are separate real floating-point numbers, of any size.
func (d DType) IsFloat() bool { return d.Valid() && dtypes[d].kind == kindFloat }

// IsComplex reports whether elements are complex numbers.
func (d DType) IsComplex() bool { return d.Valid() && dtypes[d].kind == kindComplex }

// IsInteger reports whether elements are integers; Bool is not one.
func (d DType) IsInteger() bool {
	return d.Valid() && (dtypes[d].kind == kindInt || dtypes[d].kind == kindUint)
}

// packed reports whether several elements share a byte or a block.
func (d DType) packed() bool { return d.BitSize() < 8 }

// bytesFor returns the size in bytes of n adjacent elements of d, rounded up to a byte or a block; ok is false on
// overflow. n is not negative.
func (d DType) bytesFor(n int64) (size int64, ok bool) {
	if d.Quantized() {
		elements, bytes := d.Block()
		return mul((n+int64(elements)-1)/int64(elements), int64(bytes))
	}
	bits := int64(d.BitSize())
	if bits < 8 {
		// Whole groups of eight elements fill whole bytes, so this cannot overflow.
		return n/8*bits + (n%8*bits+7)/8, true
	}
	return mul(n, bits/8)
}
