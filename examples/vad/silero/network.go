// Package silero is Silero VAD, the 16 kHz voice-activity network of github.com/snakers4/silero-vad, in plain Go.
//
// The network processes 512 new samples (32 ms) at a time and returns the probability that they contain speech. Its
// weights stay in place, in this process or in shared memory of another one: [New] uses the tensors of a state dict
// without a copy.
//
// A chunk goes through these steps; shapes are channels × time.
//
//  1. The last 64 samples of the previous chunk are prepended (zeros at first) and 64 reflected ones appended: 640 samples.
//  2. stft_conv, kernel 256, stride 128: 258 × 4, the real and imaginary parts of 129 frequencies; their magnitude: 129 × 4.
//  3. conv1 to conv4, kernel 3, padding 1, strides 1, 2, 2, 1, each with ReLU: 128 × 4, 64 × 2, 64 × 1, 128 × 1.
//  4. One LSTM cell of 128 units, whose state is kept between chunks.
//  5. ReLU, a 1 × 1 convolution to one channel, sigmoid.
package silero

import (
	"fmt"
	"math"

	"github.com/sharedtensor/sharedtensor/module"
)

// Constants of the network.
const (
	// SampleRate is the rate of the input, in samples a second.
	SampleRate = 16000
	// ChunkSamples is the number of samples that one call of [Network.Process] takes.
	ChunkSamples = 512

	contextSamples = 64 // of the previous chunk, and as many reflected ones at the end
	windowSamples  = contextSamples + ChunkSamples + contextSamples
	fftSize        = 256
	hop            = 128
	frames         = (windowSamples-fftSize)/hop + 1 // 4
	bins           = fftSize/2 + 1                   // 129
	units          = 128
)

// Network is the network with the state of one audio stream. It is not safe for concurrent use; create one for each
// stream. They share the weights and cost about 20 KiB each.
type Network struct {
	weights weights

	window [windowSamples]float32 // context, chunk, reflection
	hidden [units]float32
	cell   [units]float32

	// Intermediate results, kept so that Process does not allocate.
	spectrum [2 * bins * frames]float32
	a, b     [129 * frames]float32 // activations, channels × time
	patches  [129 * 3 * frames]float32
	gates    [4 * units]float32
	carried  [4 * units]float32
}

// New returns a network over the weights in sd. It borrows sd, which must stay open while the network is used. A state
// dict without this network is refused with [ErrWeights]; additional tensors are ignored.
func New(sd *module.StateDict) (*Network, error) {
	w, err := bindWeights(sd)
	if err != nil {
		return nil, err
	}
	return &Network{weights: w}, nil
}

// Reset restores the state before the first chunk.
func (n *Network) Reset() {
	clear(n.window[:])
	clear(n.hidden[:])
	clear(n.cell[:])
}

// Process takes the next [ChunkSamples] samples of the stream, in -1 to 1, and returns the probability of speech in
// them, 0 to 1. It borrows chunk. Another number of samples is an error and does not change the state; the caller pads
// the last chunk of a clip with zeros.
func (n *Network) Process(chunk []float32) (float32, error) {
	if len(chunk) != ChunkSamples {
		return 0, fmt.Errorf("chunk of %d samples, want %d", len(chunk), ChunkSamples)
	}
	n.shift(chunk)
	n.stft()
	n.encode()
	n.lstm(n.a[:units])
	return n.decode(), nil
}

// shift advances the window by one chunk: the end of the previous chunk becomes the context.
func (n *Network) shift(chunk []float32) {
	copy(n.window[:contextSamples], n.window[ChunkSamples:ChunkSamples+contextSamples])
	copy(n.window[contextSamples:], chunk)
	last := contextSamples + ChunkSamples - 1
	for i := 1; i <= contextSamples; i++ {
		n.window[last+i] = n.window[last-i] // the last sample itself is not repeated
	}
}

// stft stores the magnitudes of the window's spectrum in a: 129 × 4.
func (n *Network) stft() {
	matmul(n.spectrum[:], n.weights.stft, n.window[:], fftSize, hop, frames)
	re, im := n.spectrum[:bins*frames], n.spectrum[bins*frames:]
	for i := range re {
		n.a[i] = float32(math.Sqrt(float64(re[i]*re[i] + im[i]*im[i])))
	}
}

// encode transforms 129 × 4 in a to 128 × 1 in a.
func (n *Network) encode() {
	w := &n.weights
	n.conv(n.b[:128*4], n.a[:bins*4], w.conv1, w.bias1, bins, 1)
	n.conv(n.a[:64*2], n.b[:128*4], w.conv2, w.bias2, 128, 2)
	n.conv(n.b[:64*1], n.a[:64*2], w.conv3, w.bias3, 64, 2)
	n.conv(n.a[:128*1], n.b[:64*1], w.conv4, w.bias4, 64, 1)
}

// conv is a 1-D convolution, kernel 3, padding 1, with bias and ReLU, from in (channels × time) to out (len(bias) ×
// time).
func (n *Network) conv(out, in, weight, bias []float32, channels, stride int) {
	steps := len(out) / len(bias)
	width := 3 * channels
	unfold(n.patches[:steps*width], in, channels, stride)
	matmul(out, weight, n.patches[:steps*width], width, width, steps)
	for c, b := range bias {
		row := out[c*steps : (c+1)*steps]
		for i, v := range row {
			row[i] = max(v+b, 0)
		}
	}
}

// lstm is one step of the LSTM cell, which updates hidden and cell.
func (n *Network) lstm(in []float32) {
	w := &n.weights
	matmul(n.gates[:], w.inputGates, in, units, units, 1)
	matmul(n.carried[:], w.hiddenGates, n.hidden[:], units, units, 1)
	gate := func(g, u int) float64 {
		i := g*units + u
		return float64(n.gates[i] + n.carried[i] + w.inputBias[i] + w.hiddenBias[i])
	}
	for u := range units {
		input, forget := sigmoid(gate(0, u)), sigmoid(gate(1, u))
		candidate, output := math.Tanh(gate(2, u)), sigmoid(gate(3, u))
		c := forget*float64(n.cell[u]) + input*candidate
		n.cell[u] = float32(c)
		n.hidden[u] = float32(output * math.Tanh(c))
	}
}

// decode converts the hidden state to the probability. There is one time step, so the mean over time is the value
// itself.
func (n *Network) decode() float32 {
	sum := n.weights.finalBias[0]
	for u, h := range n.hidden {
		sum += n.weights.final[u] * max(h, 0)
	}
	return float32(sigmoid(float64(sum)))
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
