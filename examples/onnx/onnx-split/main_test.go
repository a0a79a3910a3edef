//go:build linux

package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/onnx/graph"
	"example.com/onnx/internal/synthetic"
)

func TestSplitWritesPair(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model := filepath.Join(dir, "model.onnx")
	require.NoError(t, synthetic.Model{Layers: 1, Width: 32, Seed: 1}.WriteFile(model))
	require.NoError(t, run([]string{model, filepath.Join(dir, "split")}, io.Discard))
	written, err := os.ReadFile(filepath.Join(dir, "split.onnx"))
	require.NoError(t, err)
	external, err := graph.External(written)
	require.NoError(t, err)
	require.Equal(t, "split.safetensors", external[0].Location)
	require.FileExists(t, filepath.Join(dir, "split.safetensors"))
}

// The model is not overwritten, also through a link.
func TestSplitKeepsItsInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model := filepath.Join(dir, "model.onnx")
	require.NoError(t, synthetic.Model{Layers: 1, Width: 32, Seed: 1}.WriteFile(model))
	require.NoError(t, os.Symlink(model, filepath.Join(dir, "link.onnx")))
	for _, prefix := range []string{"model", "link"} {
		require.ErrorContains(t, run([]string{model, filepath.Join(dir, prefix)}, io.Discard), "would be overwritten")
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "a file was written")
	require.ErrorContains(t, run([]string{model}, io.Discard), "usage")
	require.ErrorIs(t, run([]string{filepath.Join(dir, "none.onnx"), filepath.Join(dir, "x")}, io.Discard), os.ErrNotExist)
}
