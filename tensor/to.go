package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/sharedtensor/sharedtensor/driver"
)

// To returns an owned, contiguous tensor of new memory on dev with the elements of t converted to another data type; a
// nil dev is the device of t. With the same type it equals Copy. Floats are rounded to nearest, ties to even; values
// out of range of a small float become what its New function documents, and the largest value for finite types. Floats
// are truncated to integers, clamped to the integer's range, and NaN becomes 0. Integers keep their lowest bits. Bool
// is whether the element is not 0. Complex numbers convert to complex types only, and block-quantised types do not
// convert (package gguf does that); otherwise the error is [ErrDType].
// Other errors come from Copy.
func (t *Tensor) To(dev driver.Device, dt DType) (*Tensor, error) {
	if dt == t.spec.DType {
		return t.Copy(dev)
	}
	if err := CheckConversion(t.spec.DType, dt); err != nil {
		return nil, err
	}
	if err := t.copyable(); err != nil {
		return nil, err
	}
	if t.Closed() { // before memory is allocated
		return nil, t.hold()
	}
	if dev == nil {
		dev = t.Device()
	}
	c, err := Empty(dev, dt, t.spec.Shape)
	if err != nil {
		return nil, err
	}
	if err := c.convertFrom(t); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// CheckConversion returns nil if elements of one type convert to another, as by [Tensor.To], otherwise [ErrDType]. Each
// type converts to itself.
func CheckConversion(from, to DType) error {
	if from == to && from.Valid() {
		return nil
	}
	if !from.Valid() || !to.Valid() || from.Quantized() || to.Quantized() || from.IsComplex() && !to.IsComplex() {
		return fmt.Errorf("%w: %v does not convert to %v", ErrDType, from, to)
	}
	return nil
}

// convertFrom writes the converted elements of src, which has the same shape, to t, which is not shared yet.
func (t *Tensor) convertFrom(src *Tensor) error {
	return src.reading(func(from access) error {
		r, err := newReader(from)
		if err != nil {
			return err
		}
		return t.FillFromAs(r, src.spec.DType)
	})
}

// FillFromAs is [Tensor.FillFrom] for elements of another type in a file or stream: it reads exactly their bytes,
// packed if the type is, and converts them as [Tensor.To] does. Errors are [ErrDType] and those of FillFrom.
func (t *Tensor) FillFromAs(r io.Reader, dt DType) error {
	if dt == t.spec.DType {
		return t.FillFrom(r)
	}
	return t.fillConverted(dt, func(raw []byte, _ int64) error { return fill(r, raw) })
}

// fillConverted writes all elements, converted from dt. next provides the elements from index first on, as many as raw
// holds.
func (t *Tensor) fillConverted(dt DType, next func(raw []byte, first int64) error) error {
	if err := CheckConversion(dt, t.spec.DType); err != nil {
		return err
	}
	return t.writing(func(to access) error {
		defer t.storage.written()
		c, w := newConverter(dt, t.spec.DType), newWriter(to)
		for done := int64(0); done < t.elements; {
			n := int(min(t.elements-done, convertPiece))
			if err := next(c.piece(n), done); err != nil {
				return err
			}
			if _, err := w.Write(c.convert(n)); err != nil {
				return err
			}
			done += int64(n)
		}
		return nil
	})
}

// converter converts pieces of adjacent elements.
type converter struct {
	from, to DType
	floats   []float32 // if to is a real float of at most 32 bits; otherwise nil
	codes    []byte    // if from is packed and floats is nil
	in, out  []byte
}

func newConverter(from, to DType) *converter {
	c := &converter{from: from, to: to}
	size, _ := from.bytesFor(convertPiece)
	c.in = make([]byte, size)
	size, _ = to.bytesFor(convertPiece)
	c.out = make([]byte, size)
	switch {
	case to.IsFloat() && to != Float64:
		c.floats = make([]float32, convertPiece)
	case from.packed():
		c.codes = make([]byte, convertPiece)
	}
	return c
}

// piece returns the buffer for n elements, to be filled before convert.
func (c *converter) piece(n int) []byte {
	size, _ := c.from.bytesFor(int64(n))
	return c.in[:size]
}

// convert returns the n elements of the piece in the other type, valid until the next call.
func (c *converter) convert(n int) []byte {
	if c.floats == nil {
		return c.convertScalars(n)
	}
	if c.to == Float32 {
		toFloats(c.floats[:n], c.in, c.from)
	} else {
		toOddFloats(c.floats[:n], c.in, c.from)
	}
	size, _ := c.to.bytesFor(int64(n))
	fromFloats(c.out[:size], c.floats[:n], c.to)
	return c.out[:size]
}

// convertScalars is convert to Bool, an integer type, Float64 or a complex type.
func (c *converter) convertScalars(n int) []byte {
	size, _ := c.to.bytesFor(int64(n))
	in, width := c.in, c.from.BitSize()/8
	if c.from.packed() {
		unpack(c.codes[:n], c.in, int64(c.from.BitSize()))
		in, width = c.codes, 1
	}
	outWidth := c.to.BitSize() / 8
	for i := range n {
		putScalar(c.out[i*outWidth:], c.to, readScalar(c.from, in[i*width:]))
	}
	return c.out[:size]
}

// putScalar writes an element of Bool, an integer type, Float64 or a complex type.
func putScalar(raw []byte, dt DType, s scalar) {
	le := binary.LittleEndian
	switch dt {
	case Bool:
		raw[0] = 0
		if s.u != 0 || s.i != 0 || s.f != 0 {
			raw[0] = 1
		}
	case Float64:
		le.PutUint64(raw, math.Float64bits(s.float64()))
	case Complex64:
		le.PutUint32(raw, math.Float32bits(s.float32()))
		le.PutUint32(raw[4:], math.Float32bits(float32(s.im)))
	case Complex128:
		le.PutUint64(raw, math.Float64bits(s.float64()))
		le.PutUint64(raw[8:], math.Float64bits(s.im))
	default:
		bits := s.integer(dt)
		for i := range dt.BitSize() / 8 {
			raw[i] = byte(bits >> (8 * i))
		}
	}
}

func (s scalar) float64() float64 {
	switch s.kind {
	case kindInt:
		return float64(s.i)
	case kindFloat, kindComplex:
		return s.f
	}
	return float64(s.u)
}

// integer returns the value as the bits of an integer of type dt.
func (s scalar) integer(dt DType) uint64 {
	switch s.kind {
	case kindInt:
		return uint64(s.i)
	case kindFloat:
	default:
		return s.u
	}
	f := math.Trunc(s.f)
	bits := dt.BitSize()
	signed := dtypes[dt].kind == kindInt
	low, high := 0.0, math.Ldexp(1, bits)
	if signed {
		low, high = -math.Ldexp(1, bits-1), math.Ldexp(1, bits-1)
	}
	switch {
	case f != f:
		return 0
	case f <= low:
		return uint64(int64(low))
	case f >= high && signed:
		return 1<<(bits-1) - 1
	case f >= high:
		return math.MaxUint64 // its lowest bits equal those of the largest integer
	case signed:
		return uint64(int64(f))
	}
	return uint64(f)
}
