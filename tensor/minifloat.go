package tensor

import "math"

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

var (
	formatE4M3FN   = minifloat{4, 3, 7, topIsNaN}
	formatE5M2     = minifloat{5, 2, 15, ieee}
	formatE4M3FNUZ = minifloat{4, 3, 8, fnuz}
	formatE5M2FNUZ = minifloat{5, 2, 16, fnuz}
	formatE2M3FN   = minifloat{2, 3, 1, finite}
	formatE3M2FN   = minifloat{3, 2, 3, finite}
	formatE2M1FN   = minifloat{2, 1, 1, finite}
)

// Tables are small, and a conversion costs one load.
var (
	tableE4M3FN   = formatE4M3FN.table()
	tableE5M2     = formatE5M2.table()
	tableE4M3FNUZ = formatE4M3FNUZ.table()
	tableE5M2FNUZ = formatE5M2FNUZ.table()
	tableE2M3FN   = formatE2M3FN.table()
	tableE3M2FN   = formatE3M2FN.table()
	tableE2M1FN   = formatE2M1FN.table()
	tableE8M0FNU  = scaleTable()
)

// table returns the values of all codes; codes beyond the type's bits are 0.
func (m minifloat) table() *[256]float32 {
	t := new([256]float32)
	for code := range uint(1) << (1 + m.exponent + m.fraction) {
		t[code] = m.value(code)
	}
	return t
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

// smallTable returns the table of a type of at most 8 bits; nil for other types.
func smallTable(d DType) *[256]float32 {
	switch d {
	case Float8E4M3FN:
		return tableE4M3FN
	case Float8E5M2:
		return tableE5M2
	case Float8E8M0FNU:
		return tableE8M0FNU
	case Float8E4M3FNUZ:
		return tableE4M3FNUZ
	case Float8E5M2FNUZ:
		return tableE5M2FNUZ
	case Float6E2M3FN:
		return tableE2M3FN
	case Float6E3M2FN:
		return tableE3M2FN
	case Float4E2M1FN:
		return tableE2M1FN
	}
	return nil
}
