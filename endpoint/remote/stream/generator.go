package stream

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Generator is a Source for trying clients: requests without a name receive generated tensors, normally distributed
// float32. Their parameters are "shape", such as "10,10" (the default), and for Get "count". Other requests are passed
// to Source.
type Generator struct {
	Source
	// Device holds the tensors. Borrowed.
	Device driver.Device
}

// maxGenerated limits the elements that one request can generate at a time.
const maxGenerated = 1 << 26

// Set returns a generated set of tensors named 0, 1, … for a request without a name.
func (g *Generator) Set(ctx context.Context, request Request) (*Set, error) {
	if request.Name != "" {
		return g.Source.Set(ctx, request)
	}
	count, err := countOf(request.Parameters)
	if err != nil {
		return nil, err
	}
	shape, elements, err := generatedShape(request.Parameters)
	if err == nil && int64(cmp.Or(count, 1)) > maxGenerated/max(elements, 1) {
		err = fmt.Errorf("%w: %d tensors of %d elements, of at most %d elements", ErrLimit, count, elements, maxGenerated)
	}
	if err != nil {
		return nil, err
	}
	sd := module.NewStateDict()
	for i := range cmp.Or(count, 1) {
		t, err := g.generate(ctx, shape, elements)
		if err == nil {
			err = sd.Set(strconv.Itoa(i), t)
		}
		if err != nil {
			sd.Close()
			return nil, err
		}
	}
	return &Set{Tensors: sd}, nil
}

// Tensor returns a generated tensor for a request without the parameter "model".
func (g *Generator) Tensor(ctx context.Context, index int, parameters map[string]string) (*Item, error) {
	if parameters["model"] != "" {
		return g.Source.Tensor(ctx, index, parameters)
	}
	shape, elements, err := generatedShape(parameters)
	if err != nil {
		return nil, err
	}
	t, err := g.generate(ctx, shape, elements)
	if err != nil {
		return nil, err
	}
	return &Item{ID: strconv.Itoa(index), Tensor: t}, nil
}

func (g *Generator) generate(ctx context.Context, shape tensor.Shape, elements int64) (*tensor.Tensor, error) {
	values := make([]float32, elements)
	for i := range values {
		if i%(1<<20) == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		values[i] = float32(rand.NormFloat64())
	}
	return tensor.FromSlice(g.Device, shape, values)
}

// generatedShape returns the requested shape and its number of elements.
func generatedShape(parameters map[string]string) (tensor.Shape, int64, error) {
	var shape tensor.Shape
	for _, text := range strings.Split(cmp.Or(parameters["shape"], "10,10"), ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || n < 0 {
			return nil, 0, fmt.Errorf("%w: shape %q: use numbers separated by commas, such as 10,10", ErrInvalid, parameters["shape"])
		}
		shape = append(shape, n)
	}
	elements, err := shape.NumElements()
	if err == nil && (len(shape) > tensor.MaxRank || elements > maxGenerated) {
		err = fmt.Errorf("%d elements, of at most %d", elements, maxGenerated)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: shape %q: %w", ErrLimit, parameters["shape"], err)
	}
	return shape, elements, nil
}

// countOf returns the parameter "count", or 0 if it is not set.
func countOf(parameters map[string]string) (int, error) {
	text := parameters["count"]
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%w: count %q is not a positive number", ErrInvalid, text)
	}
	return n, nil
}
