package gguf

// decodeQ2_K: 16 scales and minimums of 4 bits, 256 values of 2 bits, then the scale of the scales and that of the
// minimums. Each group of 16 elements has a scale and a minimum. The values of 128 elements are in 32 bytes: the lowest
// bits of all bytes first.
func decodeQ2_K(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[84:] {
		scales, d, dmin := (*[16]byte)(src), half(src[80:]), half(src[82:])
		for group, s := range scales {
			dl, ml := d*from0x32[s&15], float32(dmin*from0x32[s>>4])
			values := [4]float32{
				float32(dl*0) - ml, float32(dl*1) - ml, float32(dl*2) - ml, float32(dl*3) - ml,
			}
			shift := group / 2 % 4 * 2
			q, out := (*[16]byte)(src[16+group/8*32+group%2*16:]), (*[16]float32)(dst[16*group:])
			for i, b := range q {
				out[i] = values[b>>shift&3]
			}
		}
	}
}

// decodeQ3_K: the high bits of 256 values in 32 bytes, their low 2 bits placed as in Q2_K, 16 scales of 6 bits in 12
// bytes, and the scale of the scales. A value is biased by 4 and a scale by 32.
func decodeQ3_K(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[110:] {
		scales, d := scalesQ3((*[12]byte)(src[96:])), half(src[108:])
		for group, s := range scales {
			dl := d * from32[s&63]
			var values [8]float32
			for i := range values {
				values[i] = dl * from8[4+i]
			}
			shift, bit := group/2%4*2, group/2
			high, q := (*[16]byte)(src[group%2*16:]), (*[16]byte)(src[32+group/8*32+group%2*16:])
			out := (*[16]float32)(dst[16*group:])
			for i, b := range q {
				out[i] = values[b>>shift&3|high[i]>>bit&1<<2]
			}
		}
	}
}

// scalesQ3 unpacks 16 numbers of 6 bits: the low 4 bits are in the halves of the first 8 bytes, the high 2 bits in the
// last 4 bytes.
func scalesQ3(b *[12]byte) (scales [16]byte) {
	for i := range scales {
		scales[i] = b[i%8]>>(i/8*4)&15 | b[8+i%4]>>(i/4*2)&3<<4
	}
	return scales
}

// decodeQ4_K: the scale of the scales and that of the minimums, eight scales and minimums of 6 bits in 12 bytes, and 256
// values of 4 bits. The low halves of 32 bytes are a group of 32 elements, and the high halves the next one.
func decodeQ4_K(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[144:] {
		d, dmin, scales := half(src), half(src[2:]), (*[12]byte)(src[4:])
		for group := range 8 {
			scale, minimum := scaleK4(scales, group)
			dl, ml := d*scale, float32(dmin*minimum)
			var values [16]float32
			for i := range values {
				values[i] = float32(dl*from0x32[i]) - ml
			}
			shift := group % 2 * 4
			q, out := (*[32]byte)(src[16+group/2*32:]), (*[32]float32)(dst[32*group:])
			for i, b := range q {
				out[i] = values[b>>shift&15]
			}
		}
	}
}

// decodeQ5_K: as Q4_K, with the fifth bits of the values in 32 bytes in front of the low 4 bits: bit g of byte i is that
// of element i of group g.
func decodeQ5_K(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[176:] {
		d, dmin, scales, high := half(src), half(src[2:]), (*[12]byte)(src[4:]), (*[32]byte)(src[16:])
		for group := range 8 {
			scale, minimum := scaleK4(scales, group)
			dl, ml := d*scale, float32(dmin*minimum)
			shift := group % 2 * 4
			q, out := (*[32]byte)(src[48+group/2*32:]), (*[32]float32)(dst[32*group:])
			for i, b := range q {
				out[i] = float32(dl*from0x32[b>>shift&15|high[i]>>group&1<<4]) - ml
			}
		}
	}
}

// scaleK4 unpacks scale and minimum j of the 12 bytes of Q4_K and Q5_K.
func scaleK4(s *[12]byte, j int) (scale, minimum float32) {
	if j < 4 {
		return int8s[s[j]&63], int8s[s[j+4]&63]
	}
	return int8s[s[j+4]&15|s[j-4]>>6<<4], int8s[s[j+4]>>4|s[j]>>6<<4]
}

// decodeQ6_K: 256 values of 6 bits, biased by 32: the low 4 in 128 bytes and the high 2 in 64. Then 16 signed scales, one
// for each group of 16 elements, and the scale of the scales.
func decodeQ6_K(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[210:] {
		scales, d := (*[16]byte)(src[192:]), half(src[208:])
		for group, s := range scales {
			part, quarter, at := group/8, group/2%4, group%2*16
			dl := d * int8s[s]
			low, high := (*[16]byte)(src[part*64+quarter%2*32+at:]), (*[16]byte)(src[128+part*32+at:])
			lowShift, highShift := quarter/2*4, quarter*2
			out := (*[16]float32)(dst[16*group:])
			for i, b := range low {
				out[i] = dl * from32[b>>lowShift&15|high[i]>>highShift&3<<4]
			}
		}
	}
}

// decodeTQ1_0: 256 ternary values and a scale. Of the first 48 bytes each holds five values as digits of a fraction to
// base 3, the next 4 bytes hold four each. Digit n of 32 adjacent bytes precedes digit n+1; then come 16 bytes and the last 4.
func decodeTQ1_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[54:] {
		d := half(src[52:])
		values := [4]float32{from8[7] * d, from8[8] * d, from8[9] * d}
		decodeTernary(dst[:160], src[:32], &values)
		decodeTernary(dst[160:240], src[32:48], &values)
		decodeTernary(dst[240:256], src[48:52], &values)
	}
}

// decodeTernary converts digits of all bytes, the first digits of all bytes first.
func decodeTernary(dst []float32, src []byte, values *[4]float32) {
	for power := byte(1); len(dst) > 0; power *= 3 {
		out := dst[:len(src)]
		for i, b := range src {
			out[i] = values[uint16(b*power)*3>>8&3]
		}
		dst = dst[len(src):]
	}
}

// decodeTQ2_0: 256 values of 2 bits, biased by 1, placed as in Q2_K, and a scale.
func decodeTQ2_0(dst []float32, src []byte) {
	for ; len(src) > 0; dst, src = dst[256:], src[66:] {
		d := half(src[64:])
		values := [4]float32{from8[7] * d, from8[8] * d, from8[9] * d, from8[10] * d}
		for group := range 8 {
			q, out, shift := (*[32]byte)(src[group/4*32:]), (*[32]float32)(dst[32*group:]), group%4*2
			for i, b := range q {
				out[i] = values[b>>shift&3]
			}
		}
	}
}
