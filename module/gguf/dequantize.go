package gguf

import (
	"encoding/binary"
	"fmt"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Float32s returns the elements of a tensor in row-major order as float32, copied from memory of any device. It converts
// all block-quantised types ([tensor.QuantizedDTypes]) as [Dequantize] does, and the types of [tensor.Float32s]. Complex
// types are [tensor.ErrDType]; other errors come from ReadBytes.
func Float32s(t *tensor.Tensor) ([]float32, error) {
	if !t.DType().Quantized() {
		return tensor.Float32s(t)
	}
	raw, err := t.ReadBytes()
	if err != nil {
		return nil, err
	}
	out := make([]float32, t.NumElements())
	return out, Dequantize(out, t.DType(), raw)
}

// blockDecoders convert whole blocks: src holds the blocks of len(dst) elements.
//
// The layout of blocks is that of ggml-common.h in the ggml repository, and the arithmetic that of dequantize_row_* in
// ggml-quants.c: in float32, in the same order, rounded after each operation. Conversions to float32 around products
// keep the compiler from fusing a product with an addition, which would change bits on arm64.
var blockDecoders = [256]func(dst []float32, src []byte){
	tensor.Q1_0: decodeQ1_0, tensor.Q2_0: decodeQ2_0, tensor.Q4_0: decodeQ4_0, tensor.Q4_1: decodeQ4_1, tensor.Q5_0: decodeQ5_0,
	tensor.Q5_1: decodeQ5_1, tensor.Q8_0: decodeQ8_0, tensor.Q8_1: decodeQ8_1,

	tensor.Q2_K: decodeQ2_K, tensor.Q3_K: decodeQ3_K, tensor.Q4_K: decodeQ4_K, tensor.Q5_K: decodeQ5_K, tensor.Q6_K: decodeQ6_K,
	tensor.Q8_K: decodeQ8_K,

	tensor.IQ1_S: decodeIQ1_S, tensor.IQ1_M: decodeIQ1_M, tensor.IQ2_XXS: decodeIQ2_XXS, tensor.IQ2_XS: decodeIQ2_XS,
	tensor.IQ2_S: decodeIQ2_S, tensor.IQ3_XXS: decodeIQ3_XXS, tensor.IQ3_S: decodeIQ3_S, tensor.IQ4_NL: decodeIQ4_NL,
	tensor.IQ4_XS: decodeIQ4_XS,

	tensor.TQ1_0: decodeTQ1_0, tensor.TQ2_0: decodeTQ2_0, tensor.MXFP4: decodeMXFP4, tensor.NVFP4: decodeNVFP4,
}

// Dequantize converts blocks of a block-quantised type to the same bits as ggml's C code. src holds the blocks of
// len(dst) elements. ggml has no conversion of [tensor.Q8_1]; its elements are the scale times the number, as for
// [tensor.Q8_0]. Errors are [tensor.ErrDType] for other types, and [ErrLength] if the sizes do not match.
func Dequantize(dst []float32, dt tensor.DType, src []byte) error {
	decode := blockDecoders[dt]
	if decode == nil {
		return fmt.Errorf("%w: %v has no blocks; tensor.Float32s converts it", tensor.ErrDType, dt)
	}
	elements, size := dt.Block()
	if len(dst)%elements != 0 || len(dst)/elements*size != len(src) {
		return fmt.Errorf("%w: %d for %d elements of %v", ErrLength, len(src), len(dst), dt)
	}
	decode(dst, src)
	return nil
}

// half returns the IEEE binary16 at the beginning of b. A NaN becomes quiet, as in ggml.
func half(b []byte) float32 {
	h := binary.LittleEndian.Uint16(b)
	if h&0x7C00 == 0x7C00 && h&0x3FF != 0 {
		h |= 0x200
	}
	return tensor.F16(h).Float32()
}

// integers returns n adjacent integers. Decoders look numbers up, because a load is faster than a conversion.
func integers(first, n int) []float32 {
	t := make([]float32, n)
	for i := range t {
		t[i] = float32(first + i)
	}
	return t
}
