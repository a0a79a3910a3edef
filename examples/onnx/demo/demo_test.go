//go:build linux

package main

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/onnx/internal/wheel"
	"example.com/onnx/internal/wheeltest"
)

// testStage returns a stage with two workers and a model of 54 MB.
func testStage(t *testing.T) (context.Context, *stage, *bytes.Buffer) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	wheeltest.Path(ctx, t, wheel.Runtime)
	shared := slices.IndexFunc(setups, func(u setup) bool { return u.name == "shared" })
	o := options{workers: 2, layers: 13, width: 1024, seconds: 0.1, restarts: 1, setups: setups[shared : shared+1]}
	out := &bytes.Buffer{}
	s, err := newStage(ctx, o, t.TempDir(), out)
	require.NoError(t, err)
	t.Cleanup(func() { t.Log(out.String()) })
	return ctx, s, out
}

// The workers answer as the whole models do, and the recognizer reads the text.
func TestRealModels(t *testing.T) {
	ctx, s, out := testStage(t)
	for _, path := range []func(context.Context) (string, error){wheel.TextRecognizer, wheel.VoiceDetector} {
		wheeltest.Path(ctx, t, path)
	}
	require.NoError(t, s.realModels(ctx))
	require.Contains(t, out.String(), `reads "shared tensors 2026"`)
}

// Two workers need at most 1.3 times the memory of one for the weights. One that is killed fails only its own requests, and
// no request fails when a version is published.
func TestLargeModel(t *testing.T) {
	ctx, s, out := testStage(t)
	require.NoError(t, s.largeModel(ctx))
	for _, text := range []string{"owner", "worker", "restart 1.0 times", "0 failed; answers by version: map[1:"} {
		require.Contains(t, out.String(), text)
	}
}
