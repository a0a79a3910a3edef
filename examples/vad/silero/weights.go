package silero

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ErrWeights means that a state dict does not hold this network: a tensor is missing, has another dtype or shape, or is
// not in memory that the processor can address.
var ErrWeights = errors.New("not the weights of Silero VAD (16 kHz)")

// weights holds the tensors of the network, in place.
type weights struct {
	stft                    []float32 // 258 × 256
	conv1, bias1            []float32 // 128 × 129 × 3
	conv2, bias2            []float32 // 64 × 128 × 3
	conv3, bias3            []float32 // 64 × 64 × 3
	conv4, bias4            []float32 // 128 × 64 × 3
	inputGates, inputBias   []float32 // 512 × 128: gates in the order input, forget, cell, output
	hiddenGates, hiddenBias []float32 // 512 × 128
	final, finalBias        []float32 // 1 × 128
}

// entry maps a tensor of the network to its field.
type entry struct {
	name  string
	shape tensor.Shape
	data  *[]float32
}

// layout lists the tensors of the network.
func (w *weights) layout() []entry {
	return []entry{
		{"stft_conv.weight", tensor.Shape{2 * bins, 1, fftSize}, &w.stft},
		{"conv1.weight", tensor.Shape{128, bins, 3}, &w.conv1},
		{"conv1.bias", tensor.Shape{128}, &w.bias1},
		{"conv2.weight", tensor.Shape{64, 128, 3}, &w.conv2},
		{"conv2.bias", tensor.Shape{64}, &w.bias2},
		{"conv3.weight", tensor.Shape{64, 64, 3}, &w.conv3},
		{"conv3.bias", tensor.Shape{64}, &w.bias3},
		{"conv4.weight", tensor.Shape{units, 64, 3}, &w.conv4},
		{"conv4.bias", tensor.Shape{units}, &w.bias4},
		{"lstm_cell.weight_ih", tensor.Shape{4 * units, units}, &w.inputGates},
		{"lstm_cell.weight_hh", tensor.Shape{4 * units, units}, &w.hiddenGates},
		{"lstm_cell.bias_ih", tensor.Shape{4 * units}, &w.inputBias},
		{"lstm_cell.bias_hh", tensor.Shape{4 * units}, &w.hiddenBias},
		{"final_conv.weight", tensor.Shape{1, units, 1}, &w.final},
		{"final_conv.bias", tensor.Shape{1}, &w.finalBias},
	}
}

// bindWeights returns the tensors of the network in sd after checking dtype and shape. It borrows sd: the weights are
// sd's memory.
func bindWeights(sd *module.StateDict) (weights, error) {
	var w weights
	for _, e := range w.layout() {
		data, err := bind(sd, e.name, e.shape)
		if err != nil {
			return weights{}, err
		}
		*e.data = data
	}
	return w, nil
}

// bind returns the elements of the float32 tensor of that name and shape, in place.
func bind(sd *module.StateDict, name string, shape tensor.Shape) ([]float32, error) {
	t, ok := sd.Get(name)
	if !ok {
		return nil, fmt.Errorf("%w: tensor %q is missing", ErrWeights, name)
	}
	if t.DType() != tensor.Float32 {
		return nil, fmt.Errorf("%w: tensor %q is %s, want %s", ErrWeights, name, t.DType(), tensor.Float32)
	}
	if !t.Shape().Equal(shape) {
		return nil, fmt.Errorf("%w: tensor %q has shape %v, want %v", ErrWeights, name, t.Shape(), shape)
	}
	data, err := tensor.Data[float32](t)
	if err != nil {
		return nil, fmt.Errorf("%w: tensor %q: %w", ErrWeights, name, err)
	}
	return data, nil
}
