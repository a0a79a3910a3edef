package tensor

import (
	"encoding/binary"
	"math"
	"slices"
)

// NewF8E4M3FN rounds to the nearest F8E4M3FN, ties to even. Values beyond 464, including infinity, become NaN: the type
// has no infinity.
func NewF8E4M3FN(f float32) F8E4M3FN { return F8E4M3FN(smallFloats[Float8E4M3FN].code(f)) }

// NewF8E5M2 rounds to the nearest F8E5M2, ties to even; from 61440 on the result is infinite. NaN becomes 0x7F or 0xFF.
func NewF8E5M2(f float32) F8E5M2 { return F8E5M2(smallFloats[Float8E5M2].code(f)) }

// NewF8E4M3FNUZ rounds to the nearest F8E4M3FNUZ, ties to even. From 248 on it is NaN; values that round to zero become
// the only zero.
func NewF8E4M3FNUZ(f float32) F8E4M3FNUZ { return F8E4M3FNUZ(smallFloats[Float8E4M3FNUZ].code(f)) }

// NewF8E5M2FNUZ rounds to the nearest F8E5M2FNUZ, ties to even. From 61440 on it is NaN; values that round to zero
// become the only zero.
func NewF8E5M2FNUZ(f float32) F8E5M2FNUZ { return F8E5M2FNUZ(smallFloats[Float8E5M2FNUZ].code(f)) }

// NewF8E8M0FNU rounds to a power of two as PyTorch does: values from 1.5 times a power of two round up. The sign is
// dropped. 0 becomes the smallest value, 2^-127, and values between it and the next become the next. From 1.5 times
// 2^127 on, and for NaN, the result is NaN.
func NewF8E8M0FNU(f float32) F8E8M0FNU { return F8E8M0FNU(scaleCode(f)) }

func scaleCode(f float32) byte {
	bits := math.Float32bits(f) &^ (1 << 31)
	switch {
	case bits >= 0xFF<<23:
		return 0xFF
	case bits <= 0x400000: // 2^-127, which is subnormal as a float32
		return 0
	}
	return byte((bits + 0x400000) >> 23)
}

// minifloatEncoder rounds to a float of at most 8 bits.
type minifloatEncoder struct {
	// values holds the values of the codes from 0 on, ascending, followed by what the next code would be: values nearer
	// to that are out of range.
	values []float32
	sign   byte // the sign bit
	over   byte // the code for values out of range, without sign
	nan    byte
	format minifloat
}

func newEncoder(m minifloat) *minifloatEncoder {
	e := &minifloatEncoder{sign: 1 << (m.exponent + m.fraction), format: m}
	for code := uint(0); code < uint(e.sign); code++ {
		v := m.value(code)
		if v != v || math.IsInf(float64(v), 0) {
			break
		}
		e.values = append(e.values, v)
	}
	largest := len(e.values) - 1
	step := e.values[largest] - e.values[largest-1]
	if uint(largest+1)&(1<<m.fraction-1) == 1 { // the largest begins an exponent, so the step above it is twice the step below
		step *= 2
	}
	e.values = append(e.values, e.values[largest]+step)
	switch m.special {
	case ieee:
		e.over, e.nan = byte(largest+1), e.sign-1 // the NaN with all bits set, as in PyTorch
	case topIsNaN:
		e.over, e.nan = byte(largest+1), byte(largest+1)
	case fnuz:
		e.over, e.nan = e.sign, e.sign
	default: // finite types: the largest value replaces all larger ones and NaN, which the formats leave open
		e.over, e.nan = byte(largest), byte(largest)
	}
	return e
}

// tableIndex returns the index of f in [smallFloat.codes].
func tableIndex(f float32) uint16 {
	bits := math.Float32bits(f)
	index := uint16(bits >> 16)
	if uint16(bits) != 0 {
		index |= 1
	}
	return index
}

// code rounds to the nearest code, ties to even.
func (e *minifloatEncoder) code(f float32) byte {
	if f != f {
		if e.format.special == ieee || e.format.special == topIsNaN {
			return e.nan | e.signOf(f)
		}
		return e.nan
	}
	abs := float32(math.Abs(float64(f)))
	above, exact := slices.BinarySearch(e.values, abs)
	largest := len(e.values) - 2
	code := above
	if !exact && above > 0 && above < len(e.values) {
		low, high := abs-e.values[above-1], e.values[above]-abs // exact: neighbours have few bits
		if low < high || low == high && (above-1)%2 == 0 {
			code = above - 1
		}
	}
	switch {
	case code > largest && e.format.special == fnuz:
		return e.nan
	case code > largest:
		return e.over | e.signOf(f)
	case code == 0 && e.format.special == fnuz:
		return 0
	}
	return byte(code) | e.signOf(f)
}

func (e *minifloatEncoder) signOf(f float32) byte {
	if math.Signbit(float64(f)) {
		return e.sign
	}
	return 0
}

// fromFloats writes adjacent elements, rounded to dt, a real float of at most 32 bits. Packed elements begin on a byte.
func fromFloats(raw []byte, values []float32, dt DType) {
	le := binary.LittleEndian
	switch dt {
	case Float32:
		for i, v := range values {
			le.PutUint32(raw[4*i:], math.Float32bits(v))
		}
	case BFloat16:
		toHalves(raw, values, bf16Pairs, NewBF16)
	case Float16:
		toHalves(raw, values, f16Pairs, NewF16)
	default:
		codes, bits := smallFloats[dt].codes(), dt.BitSize()
		if bits == 8 {
			for i, v := range values {
				raw[i] = codes[tableIndex(v)]
			}
			return
		}
		clear(raw)
		for i, v := range values {
			code, at := uint(codes[tableIndex(v)]), i*bits
			raw[at/8] |= byte(code << (at % 8))
			if at%8+bits > 8 {
				raw[at/8+1] |= byte(code >> (8 - at%8))
			}
		}
	}
}
