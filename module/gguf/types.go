package gguf

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// elementTypes maps ggml_type (ggml/include/ggml.h) to data types with separate elements. The numbers of block-quantised
// types follow from [tensor.Q4_0] = 64 + GGML_TYPE_Q4_0.
var elementTypes = map[uint32]tensor.DType{
	0: tensor.Float32, 1: tensor.Float16, 24: tensor.Int8, 25: tensor.Int16, 26: tensor.Int32, 27: tensor.Int64, 28: tensor.Float64,
	30: tensor.BFloat16,
}

const quantizedBase = 64

// dtypeOf returns the data type with a number of ggml_type, or [ErrType].
func dtypeOf(number uint32) (tensor.DType, error) {
	if dt, ok := elementTypes[number]; ok {
		return dt, nil
	}
	if number < quantizedBase {
		if dt := tensor.DType(quantizedBase + number); dt.Quantized() {
			return dt, nil
		}
	}
	return 0, fmt.Errorf("%w: number %d", ErrType, number)
}

// numberOf returns the number of ggml_type for a data type, or [ErrType].
func numberOf(dt tensor.DType) (uint32, error) {
	if dt.Quantized() {
		return uint32(dt) - quantizedBase, nil
	}
	for number, d := range elementTypes {
		if d == dt {
			return number, nil
		}
	}
	return 0, fmt.Errorf("%w: GGUF has no %v", ErrType, dt)
}
