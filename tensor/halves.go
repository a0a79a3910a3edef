package tensor

import "encoding/binary"

// Floats of 16 bits are converted to and from float32 in groups: each loop handles four of them as lanes of 64-bit
// integers, which in Go is several times as fast as one at a time. Groups with special values (NaN, infinities,
// exponents out of range) are left to the function for single values.

// lanes has the lowest bit set in both halves of a 64-bit integer.
const lanes = 1<<32 | 1

// fromHalves converts adjacent 16-bit floats. quads converts groups of four, and returns the number of elements
// converted before a group that it leaves to single.
func fromHalves[H ~uint16](out []float32, raw []byte, quads func(out, raw []byte) int, single func(H) float32) {
	dst, err := bytesOf(out)
	for done := 0; done < len(out); {
		if err == nil {
			done += quads(dst[4*done:], raw[2*done:2*len(out)])
		}
		for end := min(done+4, len(out)); done < end; done++ {
			out[done] = single(H(binary.LittleEndian.Uint16(raw[2*done:])))
		}
	}
}

// bf16Quads implements quads of fromHalves.
func bf16Quads(out, raw []byte) (done int) {
	le := binary.LittleEndian
	for len(raw) >= 8 && len(out) >= 16 {
		x := le.Uint64(raw)
		le.PutUint64(out, x<<16&0xFFFF0000|x<<32&(0xFFFF<<48))
		le.PutUint64(out[8:], x>>16&0xFFFF0000|x&(0xFFFF<<48))
		raw, out, done = raw[8:], out[16:], done+4
	}
	return done
}

// f16Quads implements quads of fromHalves. It stops at zeros, subnormal numbers, infinities and NaN, whose exponents
// are 0 and 31.
func f16Quads(out, raw []byte) (done int) {
	const each = lanes<<16 | lanes // of the four
	le := binary.LittleEndian
	for len(raw) >= 8 && len(out) >= 16 {
		x := le.Uint64(raw)
		usual := (x&(0x7C00*each) + 0x0400*each) & (0x7800 * each) // not 0 in each lane
		if (usual+0x7800*each)&(0x8000*each) != 0x8000*each {
			return done
		}
		le.PutUint64(out, f16Pair(x&0xFFFF|x<<16&(0xFFFF<<32)))
		le.PutUint64(out[8:], f16Pair(x>>32&0xFFFF|x>>16&(0xFFFF<<32)))
		raw, out, done = raw[8:], out[16:], done+4
	}
	return done
}

// f16Pair converts two F16 of usual exponents, each at the bottom of its lane, to float32.
func f16Pair(x uint64) uint64 {
	return x&(0x8000*lanes)<<16 | (x&(0x7FFF*lanes)<<13 + (127-15)<<23*lanes)
}

// toHalves converts to adjacent 16-bit floats. pairs converts groups of two, as quads of fromHalves converts groups of
// four.
func toHalves[H ~uint16](raw []byte, values []float32, pairs func(raw, values []byte) int, single func(float32) H) {
	src, err := bytesOf(values)
	for done := 0; done < len(values); {
		if err == nil {
			done += pairs(raw[2*done:], src[4*done:])
		}
		for end := min(done+4, len(values)); done < end; done++ {
			binary.LittleEndian.PutUint16(raw[2*done:], uint16(single(values[done])))
		}
	}
}

// bf16Pairs implements pairs of toHalves. It stops at NaN.
func bf16Pairs(raw, values []byte) (done int) {
	le := binary.LittleEndian
	for len(values) >= 16 && len(raw) >= 8 {
		x, y := le.Uint64(values), le.Uint64(values[8:])
		const sign, beyond = 1 << 31 * lanes, (1<<31 - (0xFF<<23 + 1)) * lanes
		if ((x&^sign+beyond)|(y&^sign+beyond))&sign != 0 {
			return done
		}
		// As in NewBF16; without NaN no lane overflows.
		x += 0x7FFF*lanes + x>>16&lanes
		y += 0x7FFF*lanes + y>>16&lanes
		le.PutUint64(raw, x>>16&0xFFFF|x>>32&0xFFFF0000|y<<16&(0xFFFF<<32)|y&(0xFFFF<<48))
		raw, values, done = raw[8:], values[16:], done+4
	}
	return done
}

// f16Pairs implements pairs of toHalves. It stops at values without a usual exponent as an F16: zeros, values below
// 2^-14 or from 65520 on, and NaN.
func f16Pairs(raw, values []byte) (done int) {
	le := binary.LittleEndian
	for len(values) >= 16 && len(raw) >= 8 {
		x, y := le.Uint64(values), le.Uint64(values[8:])
		const sign, tooLarge, notTooSmall = 1 << 31 * lanes, (1<<31 - 0x477FF000) * lanes, (1<<31 - 0x38800000) * lanes
		a, b := x&^uint64(sign), y&^uint64(sign)
		if ((a+tooLarge)|(b+tooLarge)|^(a+notTooSmall)|^(b+notTooSmall))&sign != 0 {
			return done
		}
		x, y = x>>16&(0x8000*lanes)|f16Round(a), y>>16&(0x8000*lanes)|f16Round(b)
		le.PutUint64(raw, x&0xFFFF|x>>16&0xFFFF0000|y<<32&(0xFFFF<<32)|y<<16&(0xFFFF<<48))
		raw, values, done = raw[8:], values[16:], done+4
	}
	return done
}

// f16Round converts two float32 of usual exponents without signs to F16, as [NewF16] does.
func f16Round(a uint64) uint64 {
	return (a + 0xFFF*lanes + a>>13&lanes - (127-15)<<23*lanes) >> 13 & (0x7FFF * lanes)
}
