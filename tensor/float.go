package tensor

import "math"

// F16 is one element of a Float16 tensor: the bits of an IEEE 754 binary16.
type F16 uint16

// BF16 is one element of a BFloat16 tensor: the upper 16 bits of an IEEE 754 binary32.
type BF16 uint16

// F8E4M3FN is one element of a Float8E4M3FN tensor.
type F8E4M3FN uint8

// F8E5M2 is one element of a Float8E5M2 tensor.
type F8E5M2 uint8

// F8E8M0FNU is one element of a Float8E8M0FNU tensor.
type F8E8M0FNU uint8

// F8E4M3FNUZ is one element of a Float8E4M3FNUZ tensor.
type F8E4M3FNUZ uint8

// F8E5M2FNUZ is one element of a Float8E5M2FNUZ tensor.
type F8E5M2FNUZ uint8

// Float32 returns the value, exactly. The payload of a NaN is kept.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// NewBF16 rounds to the nearest BF16, ties to even; values out of range become infinite. A NaN stays a NaN and becomes
// quiet.
func NewBF16(f float32) BF16 {
	bits := math.Float32bits(f)
	if f != f {
		return BF16(bits>>16 | 0x40)
	}
	// Adding half of the last kept place, minus one bit unless that place is odd, carries exactly when the value rounds
	// up.
	return BF16((bits + 0x7FFF + bits>>16&1) >> 16)
}

// Float32 returns the value, exactly. The payload of a NaN is kept.
func (h F16) Float32() float32 {
	sign, exp, frac := uint32(h)>>15<<31, uint32(h)>>10&0x1F, uint32(h)&0x3FF
	switch exp {
	case 0: // zero, or frac times 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	case 0x1F:
		return math.Float32frombits(sign | 0xFF<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// NewF16 rounds to the nearest F16, ties to even; from 65520 on the result is infinite. A NaN stays a NaN and becomes
// quiet.
func NewF16(f float32) F16 {
	bits := math.Float32bits(f)
	sign, abs := uint16(bits>>31)<<15, bits&^(1<<31)
	switch {
	case abs > 0xFF<<23:
		return F16(sign | 0x7E00 | uint16(abs>>13)&0x1FF)
	case abs >= 0x477FF000: // 65520, half way to the next exponent
		return F16(sign | 0x7C00)
	case abs < 0x38800000: // under 2^-14: a multiple of 2^-24, to which adding 0.5 rounds, its last place being 2^-24
		return F16(sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5)))
	}
	rounded := abs + 0xFFF + abs>>13&1
	return F16(sign | uint16((rounded-(127-15)<<23)>>13))
}

// Float32 returns the value, exactly.
func (f F8E4M3FN) Float32() float32 { return smallFloats[Float8E4M3FN].values[f] }

// Float32 returns the value, exactly.
func (f F8E5M2) Float32() float32 { return smallFloats[Float8E5M2].values[f] }

// Float32 returns the value, exactly.
func (f F8E8M0FNU) Float32() float32 { return smallFloats[Float8E8M0FNU].values[f] }

// Float32 returns the value, exactly.
func (f F8E4M3FNUZ) Float32() float32 { return smallFloats[Float8E4M3FNUZ].values[f] }

// Float32 returns the value, exactly.
func (f F8E5M2FNUZ) Float32() float32 { return smallFloats[Float8E5M2FNUZ].values[f] }
