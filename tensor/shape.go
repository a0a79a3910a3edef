package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
)

// MaxRank is the maximum number of dimensions of a tensor.
const MaxRank = 64

// Shape holds the size of each dimension in elements, outermost first. The empty shape is a scalar. A size of 0 is
// allowed and makes an empty tensor.
type Shape []int64

// Strides holds the distance in elements between neighbours in each dimension. It has the length of the shape. A stride
// of 0 repeats an element; negative strides are refused.
type Strides []int64

// NumElements returns the product of the sizes; 1 for the empty shape. A negative size or more than [MaxRank]
// dimensions is [ErrShape]. If the product of the nonzero sizes does not fit 63 bits it returns [ErrOverflow], so every
// accepted shape has row-major strides.
func (s Shape) NumElements() (int64, error) {
	if len(s) > MaxRank {
		return 0, fmt.Errorf("%w: %d dimensions, at most %d are allowed", ErrShape, len(s), MaxRank)
	}
	product, empty := int64(1), false
	for _, d := range s {
		if d <= 0 {
			if d < 0 {
				return 0, fmt.Errorf("%w: %v has a negative size", ErrShape, s)
			}
			empty = true
			continue
		}
		var ok bool
		if product, ok = mul(product, d); !ok {
			return 0, fmt.Errorf("%w: elements of shape %v", ErrOverflow, s)
		}
	}
	if empty {
		return 0, nil
	}
	return product, nil
}

// Strides returns the row-major strides of the shape; the caller owns the slice. A size of 0 counts as 1, as in
// PyTorch. NumElements must accept the shape.
func (s Shape) Strides() Strides {
	strides := make(Strides, len(s))
	step := int64(1)
	for i := len(s) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(s[i], 1)
	}
	return strides
}

// Equal reports whether both shapes have the same sizes.
func (s Shape) Equal(o Shape) bool { return slices.Equal(s, o) }

// Clone returns a copy, owned by the caller.
func (s Shape) Clone() Shape { return slices.Clone(s) }

// String formats the shape in brackets, such as "[2, 3]".
func (s Shape) String() string { return list(s) }

// Equal reports whether both strides are the same.
func (s Strides) Equal(o Strides) bool { return slices.Equal(s, o) }

// Clone returns a copy, owned by the caller; nil stays nil.
func (s Strides) Clone() Strides { return slices.Clone(s) }

// String formats the strides in brackets, such as "[3, 1]".
func (s Strides) String() string { return list(s) }

func list[T ~int64](values []T) string {
	text := []byte{'['}
	for i, v := range values {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = strconv.AppendInt(text, int64(v), 10)
	}
	return string(append(text, ']'))
}

// mul multiplies nonnegative numbers; ok is false on overflow.
func mul(a, b int64) (product int64, ok bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

// add adds nonnegative numbers; ok is false on overflow.
func add(a, b int64) (sum int64, ok bool) {
	sum = a + b
	return sum, sum >= 0
}
