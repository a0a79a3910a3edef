package engine_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Each result of a stream is decoded once, and undecoded ones are released.
func TestStreamDecodesOnce(t *testing.T) {
	drivertest.Leaks(t)
	_, c := streaming(t, new(atomic.Int64), make(chan struct{}, 3))
	n := 0
	for decode, err := range c.Stream(t.Context(), "stream", 100) {
		require.NoError(t, err)
		if n++; n%2 == 0 {
			continue // not decoded
		}
		var x *tensor.Tensor
		require.NoError(t, decode(&x))
		require.Equal(t, []float32{float32(n - 1)}, fixture.Values(t, x))
		require.NoError(t, x.Close())
		require.ErrorIs(t, decode(&x), endpoint.ErrInvalid)
	}
	require.Equal(t, 100, n)
	for decode, err := range c.Stream(t.Context(), "stream", 1) {
		require.NoError(t, err)
		var text string
		require.Error(t, decode(&text))
	}
	for _, err := range c.Stream(t.Context(), "not there", 1) {
		require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	}
}
