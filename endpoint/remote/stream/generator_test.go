package stream_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Requests without a model receive generated tensors of the requested shape, as kpu's client expects. Others reach the
// source.
func TestGenerator(t *testing.T) {
	t.Parallel()
	dev := remotetest.OpenHost(t)
	g := &stream.Generator{Source: &stream.Models{}, Device: dev}
	for text, shape := range map[string]tensor.Shape{"": {10, 10}, "3": {3}, "2, 0, 4": {2, 0, 4}} {
		item, err := g.Tensor(t.Context(), 1, map[string]string{"shape": text})
		require.NoError(t, err)
		require.Equal(t, shape, item.Tensor.Shape())
		require.Equal(t, tensor.Float32, item.Tensor.DType())
		require.NoError(t, item.Tensor.Close())
	}
	set, err := g.Set(t.Context(), stream.Request{Parameters: map[string]string{"count": "3"}})
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1", "2"}, set.Tensors.Names())
	require.NoError(t, set.Close())
	for _, parameters := range []map[string]string{{"shape": "x"}, {"shape": "-1"}, {"count": "0"}} {
		_, err := g.Set(t.Context(), stream.Request{Parameters: parameters})
		require.ErrorIs(t, err, stream.ErrInvalid)
	}
	for _, parameters := range []map[string]string{{"shape": "100000,100000"}, {"shape": "8192,8192", "count": "2"}} {
		_, err := g.Set(t.Context(), stream.Request{Parameters: parameters})
		require.ErrorIs(t, err, stream.ErrLimit)
	}
	_, err = g.Tensor(t.Context(), 0, map[string]string{"model": "m", "version": "x"})
	require.ErrorContains(t, err, "version")
}
