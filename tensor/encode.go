package tensor

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
)

// NewF8E4M3FN rounds to the nearest F8E4M3FN, ties to the even one. What lies beyond 464, and infinity, becomes NaN:
// the type has no infinity.
func NewF8E4M3FN(f float32) F8E4M3FN { return F8E4M3FN(encoderE4M3FN.code(f)) }

// NewF8E5M2 rounds to the nearest F8E5M2, ties to the even one; from 61440 on the result is infinite.
func NewF8E5M2(f float32) F8E5M2 { return F8E5M2(encoderE5M2.code(f)) }

// NewF8E4M3FNUZ rounds to the nearest F8E4M3FNUZ, ties to the even one. From 248 on it is NaN; what rounds to zero is
// the only zero.
func NewF8E4M3FNUZ(f float32) F8E4M3FNUZ { return F8E4M3FNUZ(encoderE4M3FNUZ.code(f)) }

// NewF8E5M2FNUZ rounds to the nearest F8E5M2FNUZ, ties to the even one. From 61440 on it is NaN; what rounds to zero is
// the only zero.
func NewF8E5M2FNUZ(f float32) F8E5M2FNUZ { return F8E5M2FNUZ(encoderE5M2FNUZ.code(f)) }

// NewF8E8M0FNU rounds to a power of two as PyTorch does: to the nearest, from 1.5 times one on to the next. The sign is
// lost, 0 becomes the least, 2^-127, and what is larger than that and less than the next becomes the next. From 1.5
// times 2^127 on, and for what is no number, it is NaN.
func NewF8E8M0FNU(f float32) F8E8M0FNU {
	bits := math.Float32bits(f) &^ (1 << 31)
	switch {
	case bits >= 0xFF<<23:
		return 0xFF
	case bits <= 0x400000: // 2^-127, which is subnormal as a float32
		return 0
	}
	return F8E8M0FNU((bits + 0x400000) >> 23)
}

// minifloatEncoder rounds to a float of at most 8 bits.
type minifloatEncoder struct {
	// values are those of the codes from 0 on, rising, and behind the largest what the next code would be: who is
	// nearer to that is out of range.
	values []float32
	sign   byte // the bit of the sign
	over   byte // the code of what is out of range, without its sign
	nan    byte
	format minifloat
	// table has the code for each value of a float32's upper 16 bits, the lowest of which says whether there are bits
	// below them. That is enough: where codes meet, a number has at most four bits behind its first. It is made when it
	// is first needed.
	table func() *[1 << 16]byte
}

var (
	encoderE4M3FN   = newEncoder(formatE4M3FN)
	encoderE5M2     = newEncoder(formatE5M2)
	encoderE4M3FNUZ = newEncoder(formatE4M3FNUZ)
	encoderE5M2FNUZ = newEncoder(formatE5M2FNUZ)
	encoderE2M3FN   = newEncoder(formatE2M3FN)
	encoderE3M2FN   = newEncoder(formatE3M2FN)
	encoderE2M1FN   = newEncoder(formatE2M1FN)
)

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
	e.table = sync.OnceValue(e.makeTable)
	step := e.values[largest] - e.values[largest-1]
	if uint(largest+1)&(1<<m.fraction-1) == 1 { // the largest begins an exponent, so the step from it is twice the one to it
		step *= 2
	}
	e.values = append(e.values, e.values[largest]+step)
	switch m.special {
	case ieee:
		e.over, e.nan = byte(largest+1), byte(largest+2)
	case topIsNaN:
		e.over, e.nan = byte(largest+1), byte(largest+1)
	case fnuz:
		e.over, e.nan = e.sign, e.sign
	default: // finite: the largest stands for all that is larger, and for NaN, which the formats leave open
		e.over, e.nan = byte(largest), byte(largest)
	}
	return e
}

func (e *minifloatEncoder) makeTable() *[1 << 16]byte {
	t := new([1 << 16]byte)
	for upper := range t {
		t[upper] = e.code(math.Float32frombits(uint32(upper) << 16))
	}
	return t
}

// tableIndex is where the code of f is in a table.
func tableIndex(f float32) uint16 {
	bits := math.Float32bits(f)
	index := uint16(bits >> 16)
	if uint16(bits) != 0 {
		index |= 1
	}
	return index
}

// code rounds to the nearest code, ties to the even one.
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

// scaleCodes is the table of E8M0, as minifloatEncoder has it.
var scaleCodes = sync.OnceValue(func() *[1 << 16]byte {
	t := new([1 << 16]byte)
	for upper := range t {
		t[upper] = byte(NewF8E8M0FNU(math.Float32frombits(uint32(upper) << 16)))
	}
	return t
})

// smallCodes is the table of codes of a type of at most 8 bits, see minifloatEncoder; nil for others.
func smallCodes(d DType) *[1 << 16]byte {
	switch d {
	case Float8E4M3FN:
		return encoderE4M3FN.table()
	case Float8E5M2:
		return encoderE5M2.table()
	case Float8E8M0FNU:
		return scaleCodes()
	case Float8E4M3FNUZ:
		return encoderE4M3FNUZ.table()
	case Float8E5M2FNUZ:
		return encoderE5M2FNUZ.table()
	case Float6E2M3FN:
		return encoderE2M3FN.table()
	case Float6E3M2FN:
		return encoderE3M2FN.table()
	case Float4E2M1FN:
		return encoderE2M1FN.table()
	}
	return nil
}

// fromFloats writes elements side by side, rounded to dt, a real float of at most 32 bits. Packed ones begin on a byte.
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
		codes, bits := smallCodes(dt), dt.BitSize()
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
