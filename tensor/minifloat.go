package tensor

import (
	"math"
	"sync"
)

// special determines which codes of a small float are not numbers.
type special uint8

const (
	finite   special = iota // every code is a number
	ieee                    // the top exponent is infinity or NaN
	topIsNaN                // only all ones below the sign is NaN
	fnuz                    // only the code of negative zero is NaN
)

// minifloat is a float of at most 8 bits: a sign, exponent bits, fraction bits, an exponent bias.
//
// Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0 for E4M3 and E5M2; OCP Microscaling Formats (MX) 1.0,
// section 5.3, for E2M3, E3M2, E2M1 and E8M0; for the FNUZ types "8-bit Numerical Formats for Deep Neural Networks",
// arXiv 2206.02915.
type minifloat struct {
	exponent, fraction uint
	bias               int
	special            special
}

// smallFloat converts a float of at most 8 bits.
type smallFloat struct {
	// values holds the value of each code; codes beyond the type's bits are 0.
	values *[256]float32
	// code rounds to the nearest code.
	code func(f float32) byte
	// codes returns the code for each value of a float32's upper 16 bits. The lowest of these bits is set if any lower
	// bit is. That is sufficient: boundaries between codes have at most four bits behind the first. The table is
	// computed on first use.
	codes func() *[1 << 16]byte
}

// smallFloats are the types of at most 8 bits. Tables are small, and a conversion costs one load.
var smallFloats = [dtypeEnd]*smallFloat{
	Float8E4M3FN:   minifloat{4, 3, 7, topIsNaN}.small(),
	Float8E5M2:     minifloat{5, 2, 15, ieee}.small(),
	Float8E4M3FNUZ: minifloat{4, 3, 8, fnuz}.small(),
	Float8E5M2FNUZ: minifloat{5, 2, 16, fnuz}.small(),
	Float6E2M3FN:   minifloat{2, 3, 1, finite}.small(),
	Float6E3M2FN:   minifloat{3, 2, 3, finite}.small(),
	Float4E2M1FN:   minifloat{2, 1, 1, finite}.small(),
	Float8E8M0FNU:  newSmallFloat(scaleTable(), scaleCode),
}

func newSmallFloat(values *[256]float32, code func(float32) byte) *smallFloat {
	return &smallFloat{values, code, sync.OnceValue(func() *[1 << 16]byte {
		t := new([1 << 16]byte)
		for upper := range t {
			t[upper] = code(math.Float32frombits(uint32(upper) << 16))
		}
		return t
	})}
}

func (m minifloat) small() *smallFloat {
	t := new([256]float32)
	for code := range uint(1) << (1 + m.exponent + m.fraction) {
		t[code] = m.value(code)
	}
	return newSmallFloat(t, newEncoder(m).code)
}

// value returns (-1)^sign * 2^(exponent-bias) * 1.fraction, and 2^(1-bias) * 0.fraction if the exponent is 0.
func (m minifloat) value(code uint) float32 {
	frac := code & (1<<m.fraction - 1)
	exp := code >> m.fraction & (1<<m.exponent - 1)
	negative := code>>(m.fraction+m.exponent) != 0
	sign := 1.0
	if negative {
		sign = -1
	}
	top := exp == 1<<m.exponent-1
	switch {
	case m.special == fnuz && negative && exp == 0 && frac == 0,
		m.special == topIsNaN && top && frac == 1<<m.fraction-1,
		m.special == ieee && top && frac != 0:
		return float32(math.NaN())
	case m.special == ieee && top:
		return float32(math.Inf(int(sign)))
	}
	mantissa, power := float64(frac), int(exp)
	if exp == 0 {
		power = 1
	} else {
		mantissa += float64(uint(1) << m.fraction)
	}
	return float32(math.Copysign(math.Ldexp(mantissa, power-m.bias-int(m.fraction)), sign))
}

// scaleTable returns the values of E8M0: 2^(code-127), and NaN for 255.
func scaleTable() *[256]float32 {
	t := new([256]float32)
	for code := range t {
		t[code] = float32(math.Ldexp(1, code-127))
	}
	t[255] = float32(math.NaN())
	return t
}
