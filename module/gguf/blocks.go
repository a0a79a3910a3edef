package gguf

import (
	"encoding/binary"
	"math"
)

// The numbers that codes of few bits stand for, and the values of signed bytes.
var (
	from0x32 = [32]float32(integers(0, 32))
	from8    = [16]float32(integers(-8, 16))
	from16   = [32]float32(integers(-16, 32))
	from32   = [64]float32(integers(-32, 64))
	int8s    = [256]float32(append(integers(0, 128), integers(-128, 128)...))
)

// decodeQ1_0: a scale and 128 bits. A set bit is the scale, a clear one its negation.
func decodeQ1_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[128:], src[18:] {
		d, q, out := half(src), (*[16]byte)(src[2:]), (*[128]float32)(dst)
		values := [2]float32{-d, d}
		for i, b := range q {
			o := (*[8]float32)(out[8*i:])
			o[0], o[1], o[2], o[3] = values[b&1], values[b>>1&1], values[b>>2&1], values[b>>3&1]
			o[4], o[5], o[6], o[7] = values[b>>4&1], values[b>>5&1], values[b>>6&1], values[b>>7]
		}
	}
}

// decodeQ2_0: a scale and 64 values of 2 bits, biased by 1.
func decodeQ2_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[64:], src[18:] {
		d, q, out := half(src), (*[16]byte)(src[2:]), (*[64]float32)(dst)
		values := [4]float32{from8[7] * d, from8[8] * d, from8[9] * d, from8[10] * d}
		for i, b := range q {
			o := (*[4]float32)(out[4*i:])
			o[0], o[1], o[2], o[3] = values[b&3], values[b>>2&3], values[b>>4&3], values[b>>6]
		}
	}
}

// decodeQ4_0: a scale and 32 values of 4 bits, biased by 8; the low halves of the bytes come first.
func decodeQ4_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[18:] {
		d, q, out := half(src), (*[16]byte)(src[2:]), (*[32]float32)(dst)
		for i, b := range q {
			out[i] = from8[b&15] * d
			out[i+16] = from8[b>>4] * d
		}
	}
}

// decodeQ4_1: a scale, a minimum and 32 values of 4 bits, placed as in Q4_0.
func decodeQ4_1(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[20:] {
		d, m, q, out := half(src), half(src[2:]), (*[16]byte)(src[4:]), (*[32]float32)(dst)
		for i, b := range q {
			out[i] = float32(from0x32[b&15]*d) + m
			out[i+16] = float32(from0x32[b>>4]*d) + m
		}
	}
}

// decodeQ5_0: a scale, the fifth bits of 32 values in 4 bytes, and their low 4 bits as in Q4_0; biased by 16.
func decodeQ5_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[22:] {
		d, high, q, out := half(src), binary.LittleEndian.Uint32(src[2:]), (*[16]byte)(src[6:]), (*[32]float32)(dst)
		for i, b := range q {
			out[i] = from16[uint32(b&15)|high<<4&16] * d
			out[i+16] = from16[uint32(b>>4)|high>>12&16] * d
			high >>= 1
		}
	}
}

// decodeQ5_1: as Q5_0, with a minimum behind the scale and no bias.
func decodeQ5_1(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[24:] {
		d, m, high := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:])
		q, out := (*[16]byte)(src[8:]), (*[32]float32)(dst)
		for i, b := range q {
			out[i] = float32(from0x32[uint32(b&15)|high<<4&16]*d) + m
			out[i+16] = float32(from0x32[uint32(b>>4)|high>>12&16]*d) + m
			high >>= 1
		}
	}
}

// decodeQ8_0: a scale and 32 signed bytes.
func decodeQ8_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[34:] {
		decodeBytes((*[32]float32)(dst), (*[32]byte)(src[2:]), half(src))
	}
}

// decodeQ8_1: a scale, the scaled sum of the values, which the conversion ignores, and 32 signed bytes.
func decodeQ8_1(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[36:] {
		decodeBytes((*[32]float32)(dst), (*[32]byte)(src[4:]), half(src))
	}
}

// decodeQ8_K: a scale as float32, 256 signed bytes, and sums that the conversion ignores.
func decodeQ8_K(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[292:] {
		d := math.Float32frombits(binary.LittleEndian.Uint32(src))
		for i := range 8 {
			decodeBytes((*[32]float32)(dst[32*i:]), (*[32]byte)(src[4+32*i:]), d)
		}
	}
}

func decodeBytes(out *[32]float32, q *[32]byte, d float32) {
	for i, b := range q {
		out[i] = int8s[b] * d
	}
}
