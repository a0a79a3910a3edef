package tensor

import (
	"encoding/binary"
	"io"
	"math"
)

// Float32s returns the elements of a real tensor in row-major order as float32, copied from memory of any device. Small
// floats convert exactly. Float64 and large integers are rounded to nearest, ties to even. Bool becomes 0 and 1.
// Complex and block-quantised types are [ErrDType]; other errors come from ReadBytes.
func Float32s(t *Tensor) ([]float32, error) {
	if err := CheckConversion(t.spec.DType, Float32); err != nil {
		return nil, err
	}
	if err := t.copyable(); err != nil {
		return nil, err
	}
	var out []float32
	err := t.reading(func(a access) error {
		r, err := newReader(a)
		if err != nil {
			return err
		}
		out = make([]float32, t.elements)
		return readFloats(out, r, t.spec.DType)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// convertPiece is the number of elements converted at a time; a multiple of 8, so that packed elements end on a byte.
const convertPiece = 16 << 10

func readFloats(out []float32, r io.Reader, dt DType) error {
	if same, err := bytesOf(out); err == nil && dt == Float32 {
		_, err := io.ReadFull(r, same)
		return err
	}
	size, _ := dt.bytesFor(int64(min(len(out), convertPiece)))
	raw := make([]byte, size)
	for len(out) > 0 {
		n := min(len(out), convertPiece)
		size, _ = dt.bytesFor(int64(n))
		if _, err := io.ReadFull(r, raw[:size]); err != nil {
			return err
		}
		toFloats(out[:n], raw[:size], dt)
		out = out[n:]
	}
	return nil
}

// toFloats converts adjacent elements.
func toFloats(out []float32, raw []byte, dt DType) {
	le := binary.LittleEndian
	switch dt {
	case Float32:
		for i := range out {
			out[i] = math.Float32frombits(le.Uint32(raw[4*i:]))
		}
	case BFloat16:
		fromHalves(out, raw, bf16Quads, BF16.Float32)
	case Float16:
		fromHalves(out, raw, f16Quads, F16.Float32)
	case Float6E2M3FN, Float6E3M2FN, Float4E2M1FN:
		codes := make([]byte, len(out))
		unpack(codes, raw, int64(dt.BitSize()))
		lookUp(out, codes, smallFloats[dt].values)
	case Float8E4M3FN, Float8E5M2, Float8E8M0FNU, Float8E4M3FNUZ, Float8E5M2FNUZ:
		lookUp(out, raw, smallFloats[dt].values)
	case Float64:
		convertEach(out, raw, 8, func(b []byte) float32 { return float32(math.Float64frombits(le.Uint64(b))) })
	case Int64:
		convertEach(out, raw, 8, func(b []byte) float32 { return float32(int64(le.Uint64(b))) })
	case Uint64:
		convertEach(out, raw, 8, func(b []byte) float32 { return float32(le.Uint64(b)) })
	case Int32:
		convertEach(out, raw, 4, func(b []byte) float32 { return float32(int32(le.Uint32(b))) })
	case Uint32:
		convertEach(out, raw, 4, func(b []byte) float32 { return float32(le.Uint32(b)) })
	case Int16:
		convertEach(out, raw, 2, func(b []byte) float32 { return float32(int16(le.Uint16(b))) })
	case Uint16:
		convertEach(out, raw, 2, func(b []byte) float32 { return float32(le.Uint16(b)) })
	case Int8:
		convertEach(out, raw, 1, func(b []byte) float32 { return float32(int8(b[0])) })
	case Uint8:
		convertEach(out, raw, 1, func(b []byte) float32 { return float32(b[0]) })
	default:
		size := dt.BitSize() / 8
		for i := range out {
			out[i] = readScalar(dt, raw[i*size:]).float32()
		}
	}
}

// convertEach converts adjacent elements of size bytes.
func convertEach(out []float32, raw []byte, size int, convert func([]byte) float32) {
	for i := range out {
		out[i] = convert(raw[i*size : (i+1)*size])
	}
}

func lookUp(out []float32, codes []byte, table *[256]float32) {
	for i, c := range codes[:len(out)] {
		out[i] = table[c]
	}
}

// scalar is the value of one element. The kind determines the fields in use.
type scalar struct {
	kind kind
	i    int64
	u    uint64 // also Bool
	f    float64
	im   float64
}

// readScalar reads the element at the beginning of raw; for packed types its code is in the low bits of a byte.
func readScalar(dt DType, raw []byte) scalar {
	le := binary.LittleEndian
	s := scalar{kind: dtypes[dt].kind}
	switch dt {
	case Bool:
		if raw[0] != 0 {
			s.u = 1
		}
	case Uint8:
		s.u = uint64(raw[0])
	case Uint16:
		s.u = uint64(le.Uint16(raw))
	case Uint32:
		s.u = uint64(le.Uint32(raw))
	case Uint64:
		s.u = le.Uint64(raw)
	case Int8:
		s.i = int64(int8(raw[0]))
	case Int16:
		s.i = int64(int16(le.Uint16(raw)))
	case Int32:
		s.i = int64(int32(le.Uint32(raw)))
	case Int64:
		s.i = int64(le.Uint64(raw))
	case Float64:
		s.f = math.Float64frombits(le.Uint64(raw))
	case Complex64:
		s.f = float64(math.Float32frombits(le.Uint32(raw)))
		s.im = float64(math.Float32frombits(le.Uint32(raw[4:])))
	case Complex128:
		s.f, s.im = math.Float64frombits(le.Uint64(raw)), math.Float64frombits(le.Uint64(raw[8:]))
	case Float32:
		s.f = float64(math.Float32frombits(le.Uint32(raw)))
	case Float16:
		s.f = float64(F16(le.Uint16(raw)).Float32())
	case BFloat16:
		s.f = float64(BF16(le.Uint16(raw)).Float32())
	default:
		s.f = float64(smallFloats[dt].values[raw[0]])
	}
	return s
}

// float32 returns the nearest float32 of a real number or a real part.
func (s scalar) float32() float32 {
	switch s.kind {
	case kindInt:
		return float32(s.i)
	case kindFloat, kindComplex:
		return float32(s.f)
	}
	return float32(s.u)
}
