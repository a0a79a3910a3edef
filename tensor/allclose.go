package tensor

import (
	"fmt"
	"io"
	"math"
)

// Tolerance is the maximum distance of elements that count as close.
type Tolerance struct {
	// Relative is relative to the magnitude of the second element, Absolute is a distance; their sum is the tolerance.
	Relative, Absolute float64
	// EqualNaN makes two NaNs close.
	EqualNaN bool
}

// DefaultTolerance is the default of numpy and PyTorch: 1e-5 relative and 1e-8 absolute. Types of 16 bits and less need
// more.
var DefaultTolerance = Tolerance{Relative: 1e-5, Absolute: 1e-8}

// AllClose reports whether each element of t is close to that of o: |t - o| <= Absolute + Relative * |o|. Data types,
// devices and strides may differ. Elements are compared as float64, complex ones by their distance; an infinity is
// close only to itself. Errors are [ErrShape] for different shapes, [ErrDType] for block-quantised types, those of the
// memory and [os.ErrClosed].
func (t *Tensor) AllClose(o *Tensor, tol Tolerance) (all bool, err error) {
	if !t.spec.Shape.Equal(o.spec.Shape) {
		return false, fmt.Errorf("%w: %v is compared to %v", ErrShape, t.spec.Shape, o.spec.Shape)
	}
	if t.spec.DType.Quantized() || o.spec.DType.Quantized() {
		return false, fmt.Errorf("%w: %v is compared to %v; convert blocks first", ErrDType, t.spec.DType, o.spec.DType)
	}
	err = t.reading(func(a access) error {
		return o.reading(func(b access) error {
			all, err = a.allClose(b, tol)
			return err
		})
	})
	return all, err
}

func (t access) allClose(o access, tol Tolerance) (bool, error) {
	a, err := newNumbers(t)
	if err != nil {
		return false, err
	}
	b, err := newNumbers(o)
	if err != nil {
		return false, err
	}
	for left := t.elements; left > 0; left -= convertPiece {
		n := int(min(left, convertPiece))
		x, err := a.read(n)
		if err != nil {
			return false, err
		}
		y, err := b.read(n)
		if err != nil {
			return false, err
		}
		for i := range n {
			if !tol.close(complexAt(x, i), complexAt(y, i)) {
				return false, nil
			}
		}
	}
	return true, nil
}

// close reports whether x is close to y.
func (tol Tolerance) close(x, y complex128) bool {
	if imag(x) == 0 && imag(y) == 0 {
		x, y := real(x), real(y)
		switch {
		case x == y:
			return true
		case math.IsInf(x, 0) || math.IsInf(y, 0):
			return false
		case math.IsNaN(x) || math.IsNaN(y):
			return tol.EqualNaN && math.IsNaN(x) && math.IsNaN(y)
		}
		return math.Abs(x-y) <= tol.Absolute+float64(tol.Relative*math.Abs(y))
	}
	one := Tolerance{EqualNaN: tol.EqualNaN}
	special := func(z complex128) bool { return infinite(real(z)) || infinite(imag(z)) }
	if special(x) || special(y) { // each part separately, exactly
		return one.close(complex(real(x), 0), complex(real(y), 0)) && one.close(complex(imag(x), 0), complex(imag(y), 0))
	}
	return magnitude(x-y) <= tol.Absolute+float64(tol.Relative*magnitude(y))
}

// magnitude returns the absolute value of z, with the same bits on every processor, unlike math.Hypot.
func magnitude(z complex128) float64 {
	large, small := math.Abs(real(z)), math.Abs(imag(z))
	if large < small {
		large, small = small, large
	}
	if large == 0 || math.IsInf(large, 0) {
		return large
	}
	ratio := small / large
	return large * math.Sqrt(1+float64(ratio*ratio))
}

// infinite reports whether x has no finite distance to other values.
func infinite(x float64) bool { return math.IsInf(x, 0) || math.IsNaN(x) }

// numbers reads the elements of a tensor piece by piece as complex numbers, during an access.
type numbers struct {
	*converter
	reader io.Reader
}

func newNumbers(t access) (numbers, error) {
	r, err := newReader(t)
	return numbers{newConverter(t.spec.DType, Complex128), r}, err
}

// read returns the next count elements as Complex128, valid until the next call.
func (n numbers) read(count int) ([]byte, error) {
	if _, err := io.ReadFull(n.reader, n.piece(count)); err != nil {
		return nil, err
	}
	return n.convert(count), nil
}

func complexAt(raw []byte, i int) complex128 {
	s := readScalar(Complex128, raw[16*i:])
	return complex(s.f, s.im)
}
