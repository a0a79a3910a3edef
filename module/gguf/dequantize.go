package gguf

import (
	"encoding/binary"
	"fmt"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Float32s returns the elements of a tensor in row-major order as float32, copied from memory of any device. It converts
// [tensor.Q4_0], [tensor.Q8_0], [tensor.Q4_K] and [tensor.Q6_K], and all types of [tensor.Float32s]; other types are
// [tensor.ErrDType].
func Float32s(t *tensor.Tensor) ([]float32, error) {
	if !t.DType().Quantized() {
		return tensor.Float32s(t)
	}
	if blockDecoders[t.DType()] == nil {
		return nil, unsupported(t.DType())
	}
	raw, err := t.ReadBytes()
	if err != nil {
		return nil, err
	}
	out := make([]float32, t.NumElements())
	return out, Dequantize(out, t.DType(), raw)
}

func unsupported(dt tensor.DType) error {
	return fmt.Errorf("%w: %v does not convert to float32", tensor.ErrDType, dt)
}

// blockDecoders convert one block. ggml-common.h of the ggml repository defines the layout of blocks, and
// dequantize_row_* of ggml-quants.c the formulas; all arithmetic is in float32, in the same order.
var blockDecoders = map[tensor.DType]func(out []float32, block []byte){
	tensor.Q4_0: decodeQ4_0,
	tensor.Q8_0: decodeQ8_0,
	tensor.Q4_K: decodeQ4_K,
	tensor.Q6_K: decodeQ6_K,
}

// Dequantize converts blocks of a type that [Float32s] supports. src holds the blocks of len(dst) elements. Errors are
// [tensor.ErrDType], and [ErrLength] if the sizes do not match.
func Dequantize(dst []float32, dt tensor.DType, src []byte) error {
	decode := blockDecoders[dt]
	if decode == nil {
		return unsupported(dt)
	}
	elements, size := dt.Block()
	if len(dst)%elements != 0 || len(dst)/elements*size != len(src) {
		return fmt.Errorf("%w: %d for %d elements of %v", ErrLength, len(src), len(dst), dt)
	}
	for ; len(src) > 0; dst, src = dst[elements:], src[size:] {
		decode(dst[:elements], src[:size])
	}
	return nil
}

// half returns the IEEE binary16 at the beginning of b.
func half(b []byte) float32 { return tensor.F16(binary.LittleEndian.Uint16(b)).Float32() }

// decodeQ4_0: a scale and 32 values of 4 bits, biased by 8; the low halves of the bytes come first.
func decodeQ4_0(out []float32, b []byte) {
	d, q := half(b), b[2:]
	for i := range 16 {
		out[i] = d * float32(int(q[i]&15)-8)
		out[i+16] = d * float32(int(q[i]>>4)-8)
	}
}

// decodeQ8_0: a scale and 32 signed bytes.
func decodeQ8_0(out []float32, b []byte) {
	d, q := half(b), b[2:]
	for i := range out {
		out[i] = d * float32(int8(q[i]))
	}
}

// decodeQ4_K: two scales, then eight scales and minimums of 6 bits in 12 bytes, then 256 values of 4 bits in groups of 64.
func decodeQ4_K(out []float32, b []byte) {
	d, dmin, scales, q := half(b), half(b[2:]), b[4:16], b[16:]
	for group := range 8 {
		scale, minimum := scaleK4(scales, group)
		ds, m := d*float32(scale), dmin*float32(minimum)
		shift := group % 2 * 4
		for i := range 32 {
			out[group*32+i] = ds*float32(q[group/2*32+i]>>shift&15) - m
		}
	}
}

// scaleK4 unpacks scale and minimum j of the 12 bytes of a K-quant.
func scaleK4(s []byte, j int) (scale, minimum byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

// decodeQ6_K: 256 values of 6 bits, the low 4 in 128 bytes and the high 2 in 64, then 16 signed scales and one more.
func decodeQ6_K(out []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for part := range 2 {
		for quarter := range 4 {
			for i := range 32 {
				l := low[part*64+quarter%2*32+i] >> (quarter / 2 * 4) & 15
				h := high[part*32+i] >> (quarter * 2) & 3
				at := quarter*32 + i
				scale := d * float32(int8(scales[part*8+at/16]))
				out[part*128+at] = scale * float32(int(l|h<<4)-32)
			}
		}
	}
}
