//go:build linux

package ort_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/onnx/graph"
	"example.com/onnx/internal/synthetic"
	"example.com/onnx/internal/wheel"
	"example.com/onnx/internal/wheeltest"
	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

func library(t *testing.T) *ort.Library {
	t.Helper()
	l, err := ort.Open(wheeltest.Path(t.Context(), t, wheel.Runtime))
	require.NoError(t, err)
	require.NotEmpty(t, l.Version)
	return l
}

func TestRunChecksInputs(t *testing.T) {
	t.Parallel()
	l := library(t)
	s, err := l.NewSession(synthetic.Model{Layers: 1, Width: 4, Seed: 1}.Encode(), ort.Options{})
	require.NoError(t, err)
	defer s.Close()
	require.Equal(t, []string{"x"}, s.Inputs)
	require.Equal(t, []string{"y"}, s.Outputs)
	out, err := s.Run(map[string]ort.Tensor{"x": ort.Floats([]int64{2, 4}, make([]float32, 8))})
	require.NoError(t, err)
	require.Equal(t, []int64{2, 4}, out["y"].Shape)
	for name, in := range map[string]map[string]ort.Tensor{
		"missing": {},
		"extra":   {"x": ort.Floats([]int64{1, 4}, make([]float32, 4)), "z": {}},
		"length":  {"x": ort.Floats([]int64{1, 4}, make([]float32, 3))},
		"shape":   {"x": ort.Floats([]int64{1, 3}, make([]float32, 3))},
		"type":    {"x": {DType: 99, Shape: []int64{1}, Data: []byte{1}}},
	} {
		_, err := s.Run(in)
		require.Error(t, err, name)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lib.so")
	_, err := ort.Open(path)
	require.Error(t, err)
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	_, err = ort.Open(path)
	require.Error(t, err)
}

func TestNewSessionRefusesHostileGraphs(t *testing.T) {
	t.Parallel()
	l := library(t)
	for _, graph := range [][]byte{nil, {1}, synthetic.Model{Layers: 1, Width: 4, Seed: 1}.Encode()[:50]} {
		_, err := l.NewSession(graph, ort.Options{})
		require.Error(t, err)
	}
}

// ONNX Runtime loads the two files of a split model as they are, and sees the same weights in memory of the caller.
func TestSplitModelIsEqual(t *testing.T) {
	t.Parallel()
	l := library(t)
	model := synthetic.Model{Layers: 3, Width: 32, Seed: 1}.Encode()
	parts, err := graph.Split(model, graph.Options{Location: "weights.safetensors", MinBytes: 4})
	require.NoError(t, err)
	dir, empty := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "graph.onnx"), parts.Graph, 0o600))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "weights.safetensors"), parts.Header, parts.Source))
	require.NoError(t, os.WriteFile(filepath.Join(empty, "weights.safetensors"), nil, 0o600))

	file, err := os.ReadFile(filepath.Join(dir, "weights.safetensors"))
	require.NoError(t, err)
	weights := make(map[string]ort.Tensor)
	for _, w := range parts.Header.Tensors {
		data := file[parts.Header.DataOffset+w.Begin : parts.Header.DataOffset+w.End]
		weights[w.Name] = ort.Tensor{DType: ort.Float32, Shape: w.Shape, Data: data}
	}
	x := make([]float32, 32)
	for i := range x {
		x[i] = float32(i) / 32
	}
	in := map[string]ort.Tensor{"x": ort.Floats([]int64{1, 32}, x)}
	var want []float32
	for _, open := range []func() (*ort.Session, error){
		func() (*ort.Session, error) {
			return l.NewSession(model, ort.Options{Optimize: ort.OptimizeAll, Prepack: true})
		},
		func() (*ort.Session, error) {
			return l.NewSessionFromFile(filepath.Join(dir, "graph.onnx"), ort.Options{})
		},
		func() (*ort.Session, error) {
			return l.NewSession(parts.Graph, ort.Options{Weights: weights, WeightsFolder: empty})
		},
		func() (*ort.Session, error) {
			return l.NewSession(parts.Graph, ort.Options{Weights: weights, Optimize: ort.OptimizeAll, Prepack: true})
		},
	} {
		s, err := open()
		require.NoError(t, err)
		out, err := s.Run(in)
		require.NoError(t, err)
		if want == nil {
			want = out["y"].Float32s()
		}
		require.InDeltaSlice(t, want, out["y"].Float32s(), 1e-5)
		require.NoError(t, s.Close())
	}

	// The session uses the memory of the caller, not a copy.
	s, err := l.NewSession(parts.Graph, ort.Options{Weights: weights, WeightsFolder: empty})
	require.NoError(t, err)
	defer s.Close()
	clear(file[parts.Header.DataOffset:])
	out, err := s.Run(in)
	require.NoError(t, err)
	require.Equal(t, make([]float32, 32), out["y"].Float32s())

	_, err = l.NewSession(parts.Graph, ort.Options{})
	require.Error(t, err, "weights are missing")
}
