package main

import (
	"fmt"
	"math"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// layer is a linear layer whose weights are the trainer's memory.
type layer struct {
	weight, bias []float32 // weight has a row for each output
}

// policy computes in place on the published weights: tanh layers, and the logits of left and right.
type policy struct {
	layers []layer
	values [2][]float32 // of the previous and of this layer
}

// newPolicy returns the layers actor.0, actor.1 and so on. The result is valid while the state dict is.
func newPolicy(sd *module.StateDict) (*policy, error) {
	p := &policy{}
	width := 4
	for i := 0; ; i++ {
		weight, ok := sd.Get(fmt.Sprintf("actor.%d.weight", i))
		if !ok {
			break
		}
		bias, ok := sd.Get(fmt.Sprintf("actor.%d.bias", i))
		if !ok {
			return nil, fmt.Errorf("policy: layer %d has no bias", i)
		}
		w, err := tensor.Data[float32](weight)
		if err != nil {
			return nil, err
		}
		b, err := tensor.Data[float32](bias)
		if err != nil {
			return nil, err
		}
		if len(w) != len(b)*width {
			return nil, fmt.Errorf("policy: layer %d has shape %v after a layer of %d", i, weight.Shape(), width)
		}
		p.layers = append(p.layers, layer{w, b})
		width = len(b)
	}
	if len(p.layers) == 0 || width != 2 {
		return nil, fmt.Errorf("policy: %d layers, the last with %d outputs: there have to be 2", len(p.layers), width)
	}
	return p, nil
}

// right returns the probability of pushing right.
func (p *policy) right(state [4]float32) float64 {
	in := append(p.values[0][:0], state[:]...)
	out := p.values[1]
	for i, l := range p.layers {
		out = out[:0]
		for row, sum := range l.bias {
			for j, x := range in {
				sum += l.weight[row*len(in)+j] * x
			}
			if i < len(p.layers)-1 {
				sum = float32(math.Tanh(float64(sum)))
			}
			out = append(out, sum)
		}
		in, out = out, in
	}
	p.values = [2][]float32{in, out}
	return 1 / (1 + math.Exp(float64(in[0]-in[1])))
}
