//go:build linux

package serve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"example.com/onnx/ort"
)

// errInput marks errors that the request has caused.
var errInput = errors.New("bad input")

// rows returns how many rows a request has, and a key that is equal for requests that can be combined.
func (b Batch) rows(inputs map[string]ort.Tensor) (rows int64, key string, err error) {
	rows = -1
	var k strings.Builder
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		t := inputs[name]
		axis, combined := b[name]
		if !combined {
			fmt.Fprintf(&k, "%q %d %v %q\n", name, t.DType, t.Shape, t.Data)
			continue
		}
		if axis >= len(t.Shape) {
			return 0, "", fmt.Errorf("%w: %q has %d dimensions, its batch is dimension %d", errInput, name, len(t.Shape), axis)
		}
		if rows >= 0 && rows != t.Shape[axis] {
			return 0, "", fmt.Errorf("%w: %q has %d rows, other inputs have %d", errInput, name, t.Shape[axis], rows)
		}
		rows = t.Shape[axis]
		fmt.Fprintf(&k, "%q %d %v %v\n", name, t.DType, t.Shape[:axis], t.Shape[axis+1:])
	}
	if rows < 0 {
		rows = 1 // nothing is combined
	}
	return rows, k.String(), nil
}

// join returns the inputs of one run for several requests with equal keys. Its tensors are copies.
func (b Batch) join(requests []map[string]ort.Tensor) map[string]ort.Tensor {
	joined := make(map[string]ort.Tensor, len(requests[0]))
	for name, first := range requests[0] {
		axis, combined := b[name]
		t := ort.Tensor{DType: first.DType, Shape: slices.Clone(first.Shape)}
		if !combined {
			t.Data = slices.Clone(first.Data)
			joined[name] = t
			continue
		}
		total := 0
		t.Shape[axis] = 0
		for _, r := range requests {
			t.Shape[axis] += r[name].Shape[axis]
			total += len(r[name].Data)
		}
		t.Data = make([]byte, 0, total)
		for o := range outer(t.Shape, axis) {
			for _, r := range requests {
				t.Data = append(t.Data, block(r[name], axis, o)...)
			}
		}
		joined[name] = t
	}
	return joined
}

// split divides the outputs of one run among requests with the given numbers of rows.
func (b Batch) split(outputs map[string]ort.Tensor, rows []int64) ([]map[string]ort.Tensor, error) {
	if len(rows) == 1 {
		return []map[string]ort.Tensor{outputs}, nil
	}
	var sum int64
	for _, n := range rows {
		sum += n
	}
	parts := make([]map[string]ort.Tensor, len(rows))
	for i := range parts {
		parts[i] = make(map[string]ort.Tensor, len(outputs))
	}
	for name, whole := range outputs {
		axis := b[name]
		if axis >= len(whole.Shape) || whole.Shape[axis] != sum {
			return nil, fmt.Errorf("output %q has shape %v, the batch %d rows in dimension %d", name, whole.Shape, sum, axis)
		}
		row := int64(len(whole.Data)) / outer(whole.Shape, axis) / max(sum, 1)
		for o := range outer(whole.Shape, axis) {
			rest := block(whole, axis, o)
			for i, n := range rows {
				t := parts[i][name]
				t.Data = append(t.Data, rest[:n*row]...)
				parts[i][name] = t
				rest = rest[n*row:]
			}
		}
		for i, n := range rows {
			t := parts[i][name]
			t.DType, t.Shape = whole.DType, slices.Clone(whole.Shape)
			t.Shape[axis] = n
			parts[i][name] = t
		}
	}
	return parts, nil
}

// outer returns the number of blocks before an axis, at least 1.
func outer(shape []int64, axis int) int64 {
	n := int64(1)
	for _, d := range shape[:axis] {
		n *= d
	}
	return max(n, 1)
}

// block returns the bytes of a tensor at one position of the dimensions before an axis.
func block(t ort.Tensor, axis int, at int64) []byte {
	n := int64(len(t.Data)) / outer(t.Shape, axis)
	return t.Data[at*n : (at+1)*n]
}
