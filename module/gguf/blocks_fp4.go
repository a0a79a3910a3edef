package gguf

import "math"

// valuesFP4 holds twice the values of the float E2M1. The code of negative zero is 0, as in ggml.
var valuesFP4 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// scalesNVFP4 holds half of the value of each unsigned E4M3: the scale for valuesFP4. ggml ignores the highest bit, except
// that only the code 0x7F is 0 instead of NaN.
var scalesNVFP4 = func() (t [256]float32) {
	for code := range t {
		exponent, fraction := code>>3&15, float32(code&7)
		switch {
		case code == 0x7F:
		case exponent == 0:
			t[code] = fraction * 0x1p-10
		default:
			t[code] = (1 + fraction/8) * float32(math.Ldexp(1, exponent-8))
		}
	}
	return t
}()

// decodeMXFP4: a power of two (E8M0) and 32 E2M1, placed as in Q4_0. The scale is half of the power, because the table has
// twice the values; half of the two smallest powers is subnormal.
func decodeMXFP4(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[17:] {
		d := uint32(1) << 21 << src[0]
		if src[0] >= 2 {
			d = uint32(src[0]-1) << 23
		}
		decodeIndices((*[32]float32)(dst), (*[16]byte)(src[1:]), &valuesFP4, math.Float32frombits(d))
	}
}

// decodeNVFP4: a scale for each 16 elements, and for each 16 elements 8 bytes of E2M1; the low halves of the bytes come
// first.
func decodeNVFP4(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[64:], src[36:] {
		for group := range 4 {
			d, q, out := scalesNVFP4[src[group]], (*[8]byte)(src[4+8*group:]), (*[16]float32)(dst[16*group:])
			for i, b := range q {
				out[i] = valuesFP4[b&15] * d
				out[i+8] = valuesFP4[b>>4] * d
			}
		}
	}
}
