package gguf

import (
	"encoding/binary"
	"math/bits"
)

// The IQ types store indices into codebooks of adjacent values (codebooks.go). An entry of a codebook holds 2 or 3 bits
// for each element: an index into the few magnitudes that occur.
var (
	magnitudes2   = [3]float32{8, 25, 43}
	magnitudes3XX = [8]float32{4, 12, 20, 28, 36, 44, 52, 62}
	magnitudes3S  = [8]float32{1, 3, 5, 7, 9, 11, 13, 15}
	valuesIQ4     = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
)

// shiftIQ1 is added to or subtracted from the values of IQ1_S and IQ1_M.
const shiftIQ1 = 0.125

// signs7 expands 7 signs to 8: the number of minus signs is even.
func signs7(code uint32) uint32 {
	code &= 127
	return code | uint32(bits.OnesCount32(code)&1)<<7
}

// signed2 returns the magnitudes of IQ2 times scale, and from index 4 on their negations.
func signed2(scale float32) (v [8]float32) {
	for i, m := range magnitudes2 {
		v[i] = float32(scale * m)
		v[i+4] = v[i] * -1
	}
	return v
}

// signed3 returns the magnitudes of IQ3 times scale, and from index 8 on their negations.
func signed3(scale float32, magnitudes *[8]float32) (v [16]float32) {
	for i, m := range magnitudes {
		v[i] = float32(scale * m)
		v[i+8] = v[i] * -1
	}
	return v
}

// eight2 converts an entry of 8 elements of 2 bits, with a sign for each.
func eight2(out *[8]float32, entry uint16, signs uint32, v *[8]float32) {
	g, s := uint32(entry), signs<<2
	out[0], out[1], out[2], out[3] = v[g&3|s&4], v[g>>2&3|s>>1&4], v[g>>4&3|s>>2&4], v[g>>6&3|s>>3&4]
	out[4], out[5], out[6], out[7] = v[g>>8&3|s>>4&4], v[g>>10&3|s>>5&4], v[g>>12&3|s>>6&4], v[g>>14&3|s>>7&4]
}

// four3 converts an entry of 4 elements of 3 bits, with a sign for each.
func four3(out *[4]float32, entry uint16, signs uint32, v *[16]float32) {
	g, s := uint32(entry), signs<<3
	out[0], out[1], out[2], out[3] = v[g&7|s&8], v[g>>3&7|s>>1&8], v[g>>6&7|s>>2&8], v[g>>9&7|s>>3&8]
}

// scale2 returns the scale of a group of IQ2: d * (0.5 + s) / 4.
func scale2(d float32, s uint32) float32 { return float32(d*(0.5+from0x32[s&15])) * 0.25 }

// decodeIQ2_XXS: a scale, and for each 32 elements four bytes that are indices, then a word with four times 7 signs and a
// scale of 4 bits.
func decodeIQ2_XXS(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[66:] {
		d := half(src)
		for group := range 8 {
			q := (*[8]byte)(src[2+8*group:])
			word := binary.LittleEndian.Uint32(q[4:])
			v := signed2(scale2(d, word>>28))
			for i := range 4 {
				eight2((*[8]float32)(dst[32*group+8*i:]), codebookIQ2_XXS[q[i]], signs7(word>>(7*i)), &v)
			}
		}
	}
}

// decodeIQ2_XS: a scale, 32 words with an index of 9 bits and 7 signs, and a scale of 4 bits for each 16 elements.
func decodeIQ2_XS(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[74:] {
		d, scales := half(src), (*[8]byte)(src[66:])
		for group := range 16 {
			v := signed2(scale2(d, uint32(scales[group/2]>>(group%2*4))))
			for i := range 2 {
				word := binary.LittleEndian.Uint16(src[2+4*group+2*i:])
				eight2((*[8]float32)(dst[16*group+8*i:]), codebookIQ2_XS[word&511], signs7(uint32(word>>9)), &v)
			}
		}
	}
}

// decodeIQ2_S: a scale, the low bytes of 32 indices, 32 bytes of signs, the high 2 bits of the indices in 8 bytes, and a
// scale of 4 bits for each 16 elements.
func decodeIQ2_S(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[82:] {
		d, low, signs := half(src), (*[32]byte)(src[2:]), (*[32]byte)(src[34:])
		high, scales := (*[8]byte)(src[66:]), (*[8]byte)(src[74:])
		for group := range 16 {
			v := signed2(scale2(d, uint32(scales[group/2]>>(group%2*4))))
			for at := 2 * group; at < 2*group+2; at++ {
				index := int(low[at]) | int(high[at/4])>>(at%4*2)&3<<8
				eight2((*[8]float32)(dst[8*at:]), codebookIQ2_S[index], uint32(signs[at]), &v)
			}
		}
	}
}

// decodeIQ3_XXS: a scale, 64 indices of one byte, and for each 32 elements a word with four times 7 signs and a scale of 4
// bits.
func decodeIQ3_XXS(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[98:] {
		d := half(src)
		for group := range 8 {
			q, word := (*[8]byte)(src[2+8*group:]), binary.LittleEndian.Uint32(src[66+4*group:])
			v := signed3(float32(d*(0.5+from0x32[word>>28]))*0.5, &magnitudes3XX)
			for i := range 4 {
				signs, out := signs7(word>>(7*i)), (*[8]float32)(dst[32*group+8*i:])
				four3((*[4]float32)(out[:4]), codebookIQ3_XXS[q[2*i]], signs, &v)
				four3((*[4]float32)(out[4:]), codebookIQ3_XXS[q[2*i+1]], signs>>4, &v)
			}
		}
	}
}

// decodeIQ3_S: a scale, the low bytes of 64 indices, their high bits in 8 bytes, 32 bytes of signs, and a scale of 4 bits
// for each 32 elements.
func decodeIQ3_S(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[110:] {
		d, high, scales := half(src), (*[8]byte)(src[66:]), (*[4]byte)(src[106:])
		for group := range 8 {
			low, signs := (*[8]byte)(src[2+8*group:]), (*[4]byte)(src[74+4*group:])
			v := signed3(d*from0x32[1+2*(scales[group/2]>>(group%2*4)&15)], &magnitudes3S)
			for i, s := range signs {
				h, out := int(high[group])>>(2*i), (*[8]float32)(dst[32*group+8*i:])
				four3((*[4]float32)(out[:4]), codebookIQ3_S[int(low[2*i])|h&1<<8], uint32(s), &v)
				four3((*[4]float32)(out[4:]), codebookIQ3_S[int(low[2*i+1])|h>>1&1<<8], uint32(s)>>4, &v)
			}
		}
	}
}

// shifted returns -1, 0 and 1, plus shift, times scale.
func shifted(scale, shift float32) (v [4]float32) {
	v[0], v[1], v[2] = scale*(-1+shift), scale*(0+shift), scale*(1+shift)
	return v
}

// eight1 converts an entry of 8 elements of 2 bits without signs.
func eight1(out *[8]float32, entry uint16, v *[4]float32) {
	out[0], out[1], out[2], out[3] = v[entry&3], v[entry>>2&3], v[entry>>4&3], v[entry>>6&3]
	out[4], out[5], out[6], out[7] = v[entry>>8&3], v[entry>>10&3], v[entry>>12&3], v[entry>>14&3]
}

// shiftOf returns the shift of IQ1 for its sign bit.
func shiftOf(negative bool) float32 {
	if negative {
		return -shiftIQ1
	}
	return shiftIQ1
}

// decodeIQ1_S: a scale, the low bytes of 32 indices, and for each 32 elements a word: four times the high 3 bits of an
// index, a scale of 3 bits, and the sign of the shift.
func decodeIQ1_S(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[50:] {
		d := half(src)
		for group := range 8 {
			low, word := (*[4]byte)(src[2+4*group:]), int(binary.LittleEndian.Uint16(src[34+2*group:]))
			v := shifted(d*from0x32[2*(word>>12&7)+1], shiftOf(word&0x8000 != 0))
			for i, l := range low {
				eight1((*[8]float32)(dst[32*group+8*i:]), codebookIQ1[int(l)|word>>(3*i)&7<<8], &v)
			}
		}
	}
}

// decodeIQ1_M: the low bytes of 32 indices, and 16 bytes with two times the high 3 bits of an index and the sign of its
// shift. Of the last four words, the high 4 bits are the scale, and the low 12 the scales of four groups of 16 elements.
func decodeIQ1_M(dst []float32, src []byte) {
	le := binary.LittleEndian
	for ; len(src) > 0; dst, src = dst[256:], src[56:] {
		low, high, words := (*[32]byte)(src), (*[16]byte)(src[32:]), src[48:56]
		scale := [2]byte{words[1]>>4 | words[3]&0xF0, words[5]>>4 | words[7]&0xF0}
		d := half(scale[:])
		for group := range 16 {
			s := int(le.Uint16(words[group/4*2:])) >> (group % 4 * 3) & 7
			dl := d * from0x32[2*s+1]
			for i := range 2 {
				h := int(high[group]) >> (4 * i)
				v := shifted(dl, shiftOf(h&8 != 0))
				eight1((*[8]float32)(dst[16*group+8*i:]), codebookIQ1[int(low[2*group+i])|h&7<<8], &v)
			}
		}
	}
}

// decodeIQ4_NL: a scale and 32 indices of 4 bits, placed as in Q4_0.
func decodeIQ4_NL(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[32:], src[18:] {
		decodeIndices((*[32]float32)(dst), (*[16]byte)(src[2:]), &valuesIQ4, half(src))
	}
}

// decodeIQ4_XS: a scale, the high 2 bits of eight scales in a word, their low 4 bits in 4 bytes, and for each 32 elements
// 16 bytes of indices, placed as in Q4_0. A scale is biased by 32.
func decodeIQ4_XS(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[136:] {
		d, high, low := half(src), int(binary.LittleEndian.Uint16(src[2:])), (*[4]byte)(src[4:])
		for group := range 8 {
			s := int(low[group/2])>>(group%2*4)&15 | high>>(2*group)&3<<4
			decodeIndices((*[32]float32)(dst[32*group:]), (*[16]byte)(src[8+16*group:]), &valuesIQ4, d*from32[s])
		}
	}
}

// decodeIndices converts 32 indices of 4 bits; the low halves of the bytes come first.
func decodeIndices(out *[32]float32, q *[16]byte, values *[16]float32, d float32) {
	for i, b := range q {
		out[i] = values[b&15] * d
		out[i+16] = values[b>>4] * d
	}
}
