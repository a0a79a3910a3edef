package tensor

import (
	"fmt"
	"math"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Full returns an owned, row-major tensor of new memory on dev whose elements are all value, converted as by
// [Tensor.To]. It returns the errors of [Zeros] and [Tensor.Fill].
func Full(dev driver.Device, dt DType, shape Shape, value float64) (*Tensor, error) {
	if err := CheckConversion(Float64, dt); err != nil {
		return nil, err
	}
	return made(Empty(dev, dt, shape))(func(t *Tensor) error { return t.Fill(value) })
}

// Arange returns an owned vector on dev of start, start+step and so on up to but not including end. Errors are
// [ErrShape] if step is 0 or points away from end, or the count overflows; and those of [Zeros] and [Tensor.Fill].
func Arange(dev driver.Device, dt DType, start, end, step float64) (*Tensor, error) {
	if err := CheckConversion(Float64, dt); err != nil {
		return nil, err
	}
	count := math.Ceil((end - start) / step)
	if step == 0 || count != count || count < 0 || count >= 1<<53 {
		return nil, fmt.Errorf("%w: from %v to %v in steps of %v", ErrShape, start, end, step)
	}
	return made(Empty(dev, dt, Shape{int64(count)}))(func(t *Tensor) error {
		// The conversion rounds the product, so that no processor fuses it with the addition.
		return t.fillBy(func(i int64) float64 { return start + float64(float64(i)*step) })
	})
}

// made closes a new tensor that cannot be filled.
func made(t *Tensor, err error) func(fill func(*Tensor) error) (*Tensor, error) {
	return func(fill func(*Tensor) error) (*Tensor, error) {
		if err != nil {
			return nil, err
		}
		if err := fill(t); err != nil {
			_ = t.Close() // best effort: the fill's error is returned
			return nil, err
		}
		return t, nil
	}
}

// Fill sets all elements to value, converted as by [Tensor.To]. Errors are [ErrDType] and those of FillFrom.
func (t *Tensor) Fill(value float64) error { return t.fillBy(func(int64) float64 { return value }) }

// fillBy sets element i, in row-major order, to value(i).
func (t *Tensor) fillBy(value func(i int64) float64) error {
	return t.fillConverted(Float64, func(raw []byte, first int64) error {
		for i := range int64(len(raw) / 8) {
			putScalar(raw[8*i:], Float64, scalar{kind: kindFloat, f: value(first + i)})
		}
		return nil
	})
}
