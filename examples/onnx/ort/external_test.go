//go:build linux

package ort

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/onnx/graph"
	"example.com/onnx/internal/synthetic"
	"example.com/onnx/internal/wheel"
	"example.com/onnx/internal/wheeltest"
)

// AddExternalInitializers alone copies the weights, so addWeights calls AddInitializer. If a newer release uses them in
// place, this test fails and addWeights can be simpler.
func TestExternalInitializersAreCopied(t *testing.T) {
	t.Parallel()
	l, err := Open(wheeltest.Path(t.Context(), t, wheel.Runtime))
	require.NoError(t, err)
	parts, err := graph.Split(synthetic.Model{Layers: 1, Width: 32, Seed: 1}.Encode(), graph.Options{Location: "w", MinBytes: 4})
	require.NoError(t, err)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var texts []string
	var values []uintptr
	var memory [][]byte
	for _, w := range parts.Header.Tensors {
		b := make([]byte, w.Bytes())
		b[len(b)-1] = 0x3f // the last element is 0.5
		pinner.Pin(&b[0])
		value, err := l.newValue(Tensor{Float32, w.Shape, b})
		require.NoError(t, err)
		texts, values, memory = append(texts, w.Name), append(values, value), append(memory, b)
	}
	defer l.releaseValues(values)
	options, err := l.sessionOptions(Options{})
	require.NoError(t, err)
	defer l.release(releaseSessionOptions, options)
	names := cStrings(&pinner, texts)
	require.NoError(t, l.call(addExternalInitializers, options, uintptr(unsafe.Pointer(&names[0])), uintptr(unsafe.Pointer(&values[0])), uintptr(len(names))))
	s := &Session{library: l, Inputs: []string{"x"}, Outputs: []string{"y"}}
	require.NoError(t, l.call(createSessionFromArray, l.env, uintptr(unsafe.Pointer(&parts.Graph[0])), uintptr(len(parts.Graph)), options, uintptr(unsafe.Pointer(&s.handle))))
	defer s.Close()
	for _, b := range memory {
		clear(b)
	}
	x := make([]float32, 32)
	x[31] = 1
	out, err := s.Run(map[string]Tensor{"x": Floats([]int64{1, 32}, x)})
	require.NoError(t, err)
	require.Equal(t, float32(1), out["y"].Float32s()[31], "the session used memory that was cleared")
}
