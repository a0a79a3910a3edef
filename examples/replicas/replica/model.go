//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/examples/vad/silero"
	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// model answers requests, also concurrent ones. It reads memory that it has borrowed.
type model interface {
	// infer returns the result for the body of a request.
	infer(body []byte) ([]float32, error)
}

// newModel returns the model whose weights are in sd: Silero VAD if there is a tensor stft_conv.weight, else matrices.
func newModel(sd *module.StateDict) (model, error) {
	if _, found := sd.Get("stft_conv.weight"); !found {
		return newMatrices(sd)
	}
	_, err := silero.New(sd) // checks the weights
	return vad{sd}, err
}

// vad detects speech in clips.
type vad struct{ weights *module.StateDict }

// infer takes a WAV file and returns the probability of speech in each of its chunks.
func (v vad) infer(body []byte) ([]float32, error) {
	clip, err := wav.Decode(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return nil, err
	}
	if clip.SampleRate != silero.SampleRate {
		return nil, fmt.Errorf("%w: %d Hz, want %d Hz", wav.ErrSampleRate, clip.SampleRate, silero.SampleRate)
	}
	network, err := silero.New(v.weights)
	if err != nil {
		return nil, err
	}
	probabilities := []float32{}
	chunk := make([]float32, silero.ChunkSamples)
	for at := 0; at < len(clip.Samples); at += silero.ChunkSamples {
		clip.Chunk(chunk, at)
		p, err := network.Process(chunk)
		if err != nil {
			return nil, err
		}
		probabilities = append(probabilities, p)
	}
	return probabilities, nil
}

// matrices multiplies a vector by one square matrix after another.
type matrices struct {
	layers [][]float32 // row-major
	width  int
}

func newMatrices(sd *module.StateDict) (*matrices, error) {
	m := &matrices{}
	for name, t := range sd.All() {
		values, err := tensor.Data[float32](t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if m.layers == nil && t.Rank() == 2 {
			m.width = int(t.Shape()[0])
		}
		if m.width == 0 || !t.Shape().Equal(tensor.Shape{int64(m.width), int64(m.width)}) {
			return nil, fmt.Errorf("%s: %w: its shape is %v, not %d squared", name, driver.ErrInvalid, t.Shape(), m.width)
		}
		m.layers = append(m.layers, values)
	}
	if m.layers == nil {
		return nil, fmt.Errorf("%w: the model has no tensors", driver.ErrInvalid)
	}
	return m, nil
}

// infer takes a JSON array, which zeros extend to the width of the matrices.
func (m *matrices) infer(body []byte) ([]float32, error) {
	var x []float32
	if err := json.Unmarshal(body, &x); err != nil {
		return nil, err
	}
	if len(x) > m.width {
		return nil, fmt.Errorf("%w: %d values, the model takes %d", driver.ErrInvalid, len(x), m.width)
	}
	x = append(x, make([]float32, m.width-len(x))...)
	for _, layer := range m.layers {
		y := make([]float32, m.width)
		for i := range y {
			row := layer[i*m.width : (i+1)*m.width]
			var sum float32
			for j, w := range row {
				sum += w * x[j]
			}
			y[i] = sum
		}
		x = y
	}
	return x, nil
}
