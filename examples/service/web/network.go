//go:build unix

package main

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// network is a model for requests: the owner's memory, in place. Requests only read it.
type network struct {
	layers [][]float32 // row-major square matrices
	width  int
}

// newNetwork returns the layers of a version, valid while it is mapped. It refuses a version that requests cannot use.
func newNetwork(_ context.Context, v endpoint.ModelVersion) (*network, error) {
	n := &network{}
	for name, t := range v.StateDict.All() {
		values, err := tensor.Data[float32](t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if n.layers == nil && t.Rank() == 2 {
			n.width = int(t.Shape()[0])
		}
		if !t.Shape().Equal(tensor.Shape{int64(n.width), int64(n.width)}) || n.width == 0 {
			return nil, fmt.Errorf("%s: %w: its shape is %v, not %d squared", name, driver.ErrInvalid, t.Shape(), n.width)
		}
		n.layers = append(n.layers, values)
	}
	if n.layers == nil {
		return nil, fmt.Errorf("%w: the model has no layers", driver.ErrInvalid)
	}
	return n, nil
}

// forward multiplies x, padded with zeros, by one layer after another.
func (n *network) forward(x []float32) ([]float32, error) {
	if len(x) > n.width {
		return nil, fmt.Errorf("%w: x has %d values, the model takes %d", driver.ErrInvalid, len(x), n.width)
	}
	x = append(x, make([]float32, n.width-len(x))...)
	for _, layer := range n.layers {
		y := make([]float32, n.width)
		for i := range y {
			row := layer[i*n.width : (i+1)*n.width]
			for j, w := range row {
				y[i] += w * x[j]
			}
		}
		x = y
	}
	return x, nil
}
