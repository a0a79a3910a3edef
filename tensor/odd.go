package tensor

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Numbers with more than the 24 bits of a float32 are converted to a smaller float through the float32 that is rounded to
// odd: toward zero, and then with the lowest bit set unless the result is exact. The smaller float has at least two bits
// less, so it is the nearest one to the number itself. Rounding to the nearest float32 first would round twice.

// oddFloat64 returns f rounded to odd. A NaN becomes quiet.
func oddFloat64(f float64) float32 {
	near := float32(f)
	back := float64(near)
	if back == f || f != f {
		return near
	}
	b := math.Float32bits(near)
	if math.Abs(back) > math.Abs(f) {
		b-- // the next one toward zero; from infinity, the largest number
	}
	return math.Float32frombits(b | 1)
}

// oddUint64 returns u rounded to odd.
func oddUint64(u uint64) float32 {
	drop := bits.Len64(u) - 24
	if drop <= 0 {
		return float32(u)
	}
	kept := u >> drop
	if kept<<drop != u {
		kept |= 1
	}
	return float32(kept << drop)
}

// oddInt64 returns i rounded to odd.
func oddInt64(i int64) float32 {
	if i < 0 {
		return -oddUint64(-uint64(i))
	}
	return oddUint64(uint64(i))
}

// toOddFloats converts adjacent elements, exactly or rounded to odd.
func toOddFloats(out []float32, raw []byte, dt DType) {
	le := binary.LittleEndian
	switch dt {
	case Float64:
		convertEach(out, raw, 8, func(b []byte) float32 { return oddFloat64(math.Float64frombits(le.Uint64(b))) })
	case Int32:
		convertEach(out, raw, 4, func(b []byte) float32 { return oddInt64(int64(int32(le.Uint32(b)))) })
	case Uint32:
		convertEach(out, raw, 4, func(b []byte) float32 { return oddUint64(uint64(le.Uint32(b))) })
	case Int64:
		convertEach(out, raw, 8, func(b []byte) float32 { return oddInt64(int64(le.Uint64(b))) })
	case Uint64:
		convertEach(out, raw, 8, func(b []byte) float32 { return oddUint64(le.Uint64(b)) })
	default:
		toFloats(out, raw, dt)
	}
}
