package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/examples/service"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// functions are the endpoints. They allocate memory of the device, so that it can be shared.
type functions struct{ dev driver.Device }

// buildModel is the endpoint build_model.
func (f functions) buildModel(ctx context.Context, in service.BuildArgs) (*module.StateDict, error) {
	return build(ctx, f.dev, in)
}

// build creates a model of random weights and reports each completed layer.
func build(ctx context.Context, dev driver.Device, in service.BuildArgs) (_ *module.StateDict, err error) {
	if in.HiddenSize < 1 || in.HiddenSize > 1<<14 || in.Layers < 1 || in.Layers > 1000 || in.PaceMS < 0 {
		return nil, fmt.Errorf("%w: a model of %d layers of %d", driver.ErrInvalid, in.Layers, in.HiddenSize)
	}
	model := module.NewStateDict()
	defer func() {
		if err != nil {
			err = errors.Join(err, model.Close())
		}
	}()
	random := rand.New(rand.NewPCG(uint64(in.HiddenSize), uint64(in.Layers)))
	pace := time.Duration(in.PaceMS) * time.Millisecond
	for i := range in.Layers {
		task.Report(ctx, int64(i), int64(in.Layers), fmt.Sprintf("layer %d of %d", i+1, in.Layers))
		weight, err := layer(dev, in.HiddenSize, random)
		if err != nil {
			return nil, err
		}
		if err := model.Set(fmt.Sprintf("layers.%d.weight", i), weight); err != nil { // takes ownership of weight
			return nil, err
		}
		select {
		case <-time.After(pace):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return model, nil
}

// layer returns a square matrix of weights, owned by the caller.
func layer(dev driver.Device, width int64, random *rand.Rand) (*tensor.Tensor, error) {
	weight, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{width, width})
	if err != nil {
		return nil, err
	}
	values, err := tensor.Data[float32](weight)
	if err != nil {
		return nil, errors.Join(err, weight.Close())
	}
	bound := math.Sqrt(3 / float64(width))
	for i := range values {
		values[i] = float32((2*random.Float64() - 1) * bound)
	}
	return weight, nil
}

// transform reads the caller's memory and writes memory that the caller will read.
func (f functions) transform(_ context.Context, in service.TransformArgs) (*tensor.Tensor, error) {
	if in.X == nil {
		return nil, fmt.Errorf("%w: x is missing", driver.ErrInvalid)
	}
	values, err := tensor.Float32s(in.X)
	if err != nil {
		return nil, err
	}
	for i := range values {
		values[i] = in.Scale*values[i] + in.Shift
	}
	return tensor.FromSlice(f.dev, in.X.Shape(), values)
}

// spectralNorm multiplies a vector by the matrix and its transpose repeatedly and yields its growth.
func (f functions) spectralNorm(_ context.Context, in service.NormArgs) iter.Seq2[service.Estimate, error] {
	return func(yield func(service.Estimate, error) bool) {
		a, err := newMatrix(in.A)
		if err != nil {
			yield(service.Estimate{}, err)
			return
		}
		x := make([]float64, a.columns)
		for i := range x {
			x[i] = 1 / math.Sqrt(float64(a.columns))
		}
		for step := range in.Steps {
			y := a.times(x)
			norm := normalize(y)
			x = a.transposedTimes(y)
			normalize(x)
			if !yield(service.Estimate{Step: step + 1, Value: norm}, nil) {
				return // the caller has left
			}
		}
	}
}

// matrix is a row-major matrix.
type matrix struct {
	values        []float32
	rows, columns int
}

func newMatrix(a *tensor.Tensor) (matrix, error) {
	if a == nil || a.Rank() != 2 || a.NumElements() == 0 {
		return matrix{}, fmt.Errorf("%w: a has to be a matrix", driver.ErrInvalid)
	}
	values, err := tensor.Float32s(a)
	return matrix{values, int(a.Shape()[0]), int(a.Shape()[1])}, err
}

func (a matrix) times(x []float64) []float64 {
	y := make([]float64, a.rows)
	for i := range y {
		for j, v := range x {
			y[i] += float64(a.values[i*a.columns+j]) * v
		}
	}
	return y
}

func (a matrix) transposedTimes(y []float64) []float64 {
	x := make([]float64, a.columns)
	for i, v := range y {
		for j := range x {
			x[j] += float64(a.values[i*a.columns+j]) * v
		}
	}
	return x
}

// normalize scales a vector to length 1 and returns its previous length.
func normalize(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	length := math.Sqrt(sum)
	if length > 0 {
		for i := range x {
			x[i] /= length
		}
	}
	return length
}
