package inference

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
)

// ranked is a list of numbers that classification compares and prints without converting them to another type.
type ranked interface {
	len() int
	// compare compares two elements. NaN is less than every other number.
	compare(i, j int) int
	// text appends an element as Triton prints it.
	text(b []byte, i int) []byte
}

// rankedNumbers is a list of one type of numbers.
type rankedNumbers[T cmp.Ordered] struct {
	values []T
	format func(b []byte, v T) []byte
}

func (r rankedNumbers[T]) len() int { return len(r.values) }

func (r rankedNumbers[T]) compare(i, j int) int { return cmp.Compare(r.values[i], r.values[j]) }

func (r rankedNumbers[T]) text(b []byte, i int) []byte { return r.format(b, r.values[i]) }

// rankedOf decodes the elements of a tensor of numbers.
func rankedOf(raw []byte, d string) (ranked, error) {
	values, err := list(d, raw)
	if err != nil {
		return nil, err
	}
	switch v := values.(type) {
	case []int8:
		return rankedNumbers[int8]{v, appendSigned[int8]}, nil
	case []int16:
		return rankedNumbers[int16]{v, appendSigned[int16]}, nil
	case []int32:
		return rankedNumbers[int32]{v, appendSigned[int32]}, nil
	case []int64:
		return rankedNumbers[int64]{v, appendSigned[int64]}, nil
	case []uint16:
		return rankedNumbers[uint16]{v, appendUnsigned[uint16]}, nil
	case []uint32:
		return rankedNumbers[uint32]{v, appendUnsigned[uint32]}, nil
	case []uint64:
		return rankedNumbers[uint64]{v, appendUnsigned[uint64]}, nil
	case []float32:
		return rankedNumbers[float32]{v, func(b []byte, f float32) []byte { return appendFixed(b, float64(f)) }}, nil
	case []float64:
		return rankedNumbers[float64]{v, appendFixed}, nil
	}
	return nil, fmt.Errorf("%w: classification needs a tensor of numbers", ErrInvalid)
}

// appendFixed appends a number with six digits after the point, as std::to_string does.
func appendFixed(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	return strconv.AppendFloat(b, f, 'f', 6, 64)
}
