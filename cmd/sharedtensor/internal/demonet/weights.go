package demonet

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ErrWeights means that a state dict does not contain this package's network: a tensor is missing, has another dtype or
// shape, or is not in host memory.
var ErrWeights = errors.New("not the demo's network")

// layer holds the weights of one layer, in place.
type layer struct {
	norm1, qkv, out []float32
	norm2, up, down []float32
}

// binder collects the tensors of a state dict and keeps the first error.
type binder struct {
	sd  *module.StateDict
	err error
}

// bind returns the elements of the float32 tensor of that name and shape, in place; nil after an error.
func (b *binder) bind(name string, dims ...int) []float32 {
	if b.err != nil {
		return nil
	}
	t, ok := b.sd.Get(name)
	if !ok {
		b.err = fmt.Errorf("%w: tensor %q is missing", ErrWeights, name)
		return nil
	}
	if want := float32Spec(name, dims...).Spec.Shape; !t.Shape().Equal(want) {
		b.err = fmt.Errorf("%w: tensor %q has shape %v, want %v", ErrWeights, name, t.Shape(), want)
		return nil
	}
	data, err := tensor.Data[float32](t)
	if err != nil {
		b.err = fmt.Errorf("%w: tensor %q: %w", ErrWeights, name, err)
	}
	return data
}

// layer returns the weights of layer i.
func (b *binder) layer(i int, c Config) layer {
	name := layerName(i)
	return layer{
		norm1: b.bind(name+"norm1.weight", c.Dim),
		qkv:   b.bind(name+"attention.qkv.weight", 3*c.Dim, c.Dim),
		out:   b.bind(name+"attention.out.weight", c.Dim, c.Dim),
		norm2: b.bind(name+"norm2.weight", c.Dim),
		up:    b.bind(name+"mlp.up.weight", c.Hidden, c.Dim),
		down:  b.bind(name+"mlp.down.weight", c.Dim, c.Hidden),
	}
}

// configOf derives the network's size from the shapes in sd.
func configOf(sd *module.StateDict) (Config, error) {
	var c Config
	var err error
	if c.Vocab, c.Dim, err = matrix(sd, embedName); err != nil {
		return Config{}, err
	}
	if c.Hidden, _, err = matrix(sd, layerName(0)+"mlp.up.weight"); err != nil {
		return Config{}, err
	}
	for {
		if _, ok := sd.Get(layerName(c.Layers) + "norm1.weight"); !ok {
			break
		}
		c.Layers++
	}
	return c, c.valid()
}

// matrix returns the shape of a tensor that must have rank 2.
func matrix(sd *module.StateDict, name string) (rows, columns int, err error) {
	t, ok := sd.Get(name)
	if !ok {
		return 0, 0, fmt.Errorf("%w: tensor %q is missing", ErrWeights, name)
	}
	if t.Rank() != 2 {
		return 0, 0, fmt.Errorf("%w: tensor %q has shape %v, want a matrix", ErrWeights, name, t.Shape())
	}
	return int(t.Shape()[0]), int(t.Shape()[1]), nil
}
