package jsonrpc

import (
	"fmt"
	"io"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// parseDType parses a dtype name of PyTorch ("float32", "torch.float32") or safetensors ("F32").
func parseDType(name string) (tensor.DType, error) {
	dt, err := tensor.ParseDType(name)
	if err == nil {
		return dt, nil
	}
	if dt, ok := safetensors.ParseDType(name); ok == nil {
		return dt, nil
	}
	return dt, fmt.Errorf("%w: dtype: %w", models.ErrParams, err)
}

func newStringReader(s string) io.Reader { return strings.NewReader(s) }

// fromValues builds a tensor from nested lists of numbers. If s has a shape, the lists must have that shape.
func (in *incoming) fromValues(s tensorSpec) (*tensor.Tensor, error) {
	shape, err := shapeOfLists(s.values)
	if err != nil {
		return nil, err
	}
	if err := matches(s.values, shape, 0); err != nil {
		return nil, err
	}
	if s.hasShape && !shape.Equal(s.shape) {
		return nil, fmt.Errorf("%w: values have shape %v, and shape says %v", models.ErrParams, shape, s.shape)
	}
	flat := flatten(s.values, nil)
	t, err := in.build(s.dtype, shape, flat)
	if err != nil {
		return nil, err
	}
	in.held = append(in.held, t)
	return t, nil
}

// shapeOfLists returns the shape of nested lists, taken from the first element of each. matches checks the other
// elements.
func shapeOfLists(v any) (tensor.Shape, error) {
	shape := tensor.Shape{}
	for {
		list, isList := v.([]any)
		if !isList {
			return shape, nil
		}
		if len(shape) == tensor.MaxRank {
			return nil, fmt.Errorf("%w: a tensor can have at most %d dimensions", models.ErrParams, tensor.MaxRank)
		}
		shape = append(shape, int64(len(list)))
		if len(list) == 0 {
			return shape, nil
		}
		v = list[0]
	}
}

var errRagged = fmt.Errorf("%w: the lists of values differ in length", models.ErrParams)

// matches returns an error unless v is nested lists with the dimensions of shape from depth on.
func matches(v any, shape tensor.Shape, depth int) error {
	list, isList := v.([]any)
	if isList != (depth < len(shape)) || isList && shape[depth] != int64(len(list)) {
		return errRagged
	}
	for _, one := range list {
		if err := matches(one, shape, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func flatten(v any, flat []any) []any {
	list, isList := v.([]any)
	if !isList {
		return append(flat, v)
	}
	for _, one := range list {
		flat = flatten(one, flat)
	}
	return flat
}

// build makes a tensor from a flat list of numbers.
func (in *incoming) build(dt tensor.DType, shape tensor.Shape, flat []any) (*tensor.Tensor, error) {
	dev := in.c.dev
	switch dt {
	case tensor.Bool:
		values, err := convertAll(flat, func(v any) (bool, bool) { b, ok := v.(bool); return b, ok })
		if err != nil {
			return nil, err
		}
		return tensor.FromBools(dev, shape, values)
	case tensor.Float64:
		return fromNumbers(flat, toFloat[float64], func(v []float64) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Float32:
		return fromNumbers(flat, toFloat[float32], func(v []float32) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.BFloat16:
		return fromNumbers(flat, func(v any) (tensor.BF16, bool) { f, ok := toFloat[float32](v); return tensor.NewBF16(f), ok },
			func(v []tensor.BF16) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Float16:
		return fromNumbers(flat, func(v any) (tensor.F16, bool) { f, ok := toFloat[float32](v); return tensor.NewF16(f), ok },
			func(v []tensor.F16) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Int8:
		return fromNumbers(flat, toInt[int8], func(v []int8) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Int16:
		return fromNumbers(flat, toInt[int16], func(v []int16) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Int32:
		return fromNumbers(flat, toInt[int32], func(v []int32) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Int64:
		return fromNumbers(flat, toInt[int64], func(v []int64) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Uint8:
		return fromNumbers(flat, toInt[uint8], func(v []uint8) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Uint16:
		return fromNumbers(flat, toInt[uint16], func(v []uint16) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Uint32:
		return fromNumbers(flat, toInt[uint32], func(v []uint32) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	case tensor.Uint64:
		return fromNumbers(flat, toUint64, func(v []uint64) (*tensor.Tensor, error) { return tensor.FromSlice(dev, shape, v) })
	}
	return nil, fmt.Errorf("%w: values of dtype %v are not supported: send data instead", models.ErrParams, dt)
}

func fromNumbers[T any](flat []any, to func(any) (T, bool), make func([]T) (*tensor.Tensor, error)) (*tensor.Tensor, error) {
	values, err := convertAll(flat, to)
	if err != nil {
		return nil, err
	}
	return make(values)
}

func convertAll[T any](flat []any, to func(any) (T, bool)) ([]T, error) {
	values := make([]T, len(flat))
	for i, v := range flat {
		one, ok := to(v)
		if !ok {
			return nil, fmt.Errorf("%w: values[%d] is not of the tensor's dtype: %v", models.ErrParams, i, v)
		}
		values[i] = one
	}
	return values, nil
}

func toFloat[T float32 | float64](v any) (T, bool) {
	switch v := v.(type) {
	case float64:
		return T(v), true
	case int64:
		return T(v), true
	case uint64:
		return T(v), true
	case map[string]any: // a number that JSON cannot represent
		text, _ := v[floatKey].(string)
		f, err := parseFloat(text)
		return T(f), err == nil && len(v) == 1
	}
	return 0, false
}

// toInt converts a whole number that fits in T.
func toInt[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](v any) (T, bool) {
	n, ok := v.(int64)
	return T(n), ok && int64(T(n)) == n
}

func toUint64(v any) (uint64, bool) {
	switch v := v.(type) {
	case int64:
		return uint64(v), v >= 0
	case uint64:
		return v, true
	}
	return 0, false
}
