package command

import (
	"errors"
	"math"
	"strconv"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// maxJSONElements is the size of the largest tensor whose elements are printed as JSON. Larger tensors are printed
// without elements.
const maxJSONElements = 1000

// tensorJSON is the JSON form of a tensor.
type tensorJSON struct {
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
	Bytes int64   `json:"bytes"`
	// Values are the elements in row-major order. It is empty for tensors over maxJSONElements, and for types that JSON
	// cannot represent.
	Values []any `json:"values,omitempty"`
}

// jsonValue converts a result for the JSON library: tensors become objects, and numbers that JSON cannot represent
// become strings.
func (p printer) jsonValue(v any) (_ any, err error) {
	switch v := v.(type) {
	case *tensor.Tensor:
		return p.tensor(v)
	case *module.StateDict:
		var d description
		m, _ := v.Manifest()
		d.Tensors = []*tensorRow{}
		return &d, d.fill(m)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			if list[i], err = p.jsonValue(v[i]); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		object := make(map[string]any, len(v))
		for key := range v {
			if object[key], err = p.jsonValue(v[key]); err != nil {
				return nil, err
			}
		}
		return object, nil
	case float64:
		return jsonNumber(v), nil
	case float32:
		return jsonNumber(float64(v)), nil
	}
	return v, nil
}

// jsonNumber returns f, or its name if JSON cannot represent it: "NaN", "+Inf", "-Inf".
func jsonNumber(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return f
}

func (p printer) tensor(t *tensor.Tensor) (_ *tensorJSON, err error) {
	out := &tensorJSON{DType: t.DType().String(), Shape: t.Shape(), Bytes: t.Bytes()}
	if out.Shape == nil {
		out.Shape = []int64{}
	}
	if t.NumElements() > maxJSONElements || t.DType().IsComplex() || t.DType().Quantized() {
		return out, nil
	}
	here, err := t.Copy(p.host) // Copy also makes it contiguous
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, here.Close()) }()
	out.Values, err = elements(here)
	return out, err
}

// elements returns the elements of a contiguous tensor in host memory.
func elements(t *tensor.Tensor) ([]any, error) {
	switch t.DType() {
	case tensor.Bool:
		values, err := tensor.Data[uint8](t)
		return convert(values, func(v uint8) any { return v != 0 }), err
	case tensor.Float64:
		values, err := tensor.Data[float64](t)
		return convert(values, jsonNumber), err
	case tensor.Int8:
		return integers[int8](t)
	case tensor.Int16:
		return integers[int16](t)
	case tensor.Int32:
		return integers[int32](t)
	case tensor.Int64:
		return integers[int64](t)
	case tensor.Uint8:
		return integers[uint8](t)
	case tensor.Uint16:
		return integers[uint16](t)
	case tensor.Uint32:
		return integers[uint32](t)
	case tensor.Uint64:
		return integers[uint64](t)
	}
	values, err := tensor.Float32s(t)
	return convert(values, func(v float32) any { return shortest(v) }), err
}

// shortest returns the shortest decimal that parses as v: 0.1, not 0.10000000149011612.
func shortest(v float32) any {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	if err != nil {
		f = float64(v)
	}
	return jsonNumber(f)
}

func integers[T tensor.Element](t *tensor.Tensor) ([]any, error) {
	values, err := tensor.Data[T](t)
	return convert(values, func(v T) any { return v }), err
}

func convert[T any](values []T, to func(T) any) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = to(v)
	}
	return out
}
