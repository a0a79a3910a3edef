package node_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestInProcessStreamLeaks(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	r := endpoint.NewRegistry()
	registerRole(t, r, dev)
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	for _, leave := range []int{1, 3, 100} {
		taken := 0
		for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), c, "vectors", 100) {
			require.NoError(t, err)
			require.Equal(t, []float32{float32(taken)}, fixture.Values(t, x))
			require.NoError(t, x.Close())
			if taken++; taken == leave {
				break
			}
		}
		require.Equal(t, leave, taken)
	}
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
}

// Memory that a driver cannot import in the exporting process is still available to clients of that process.
func TestInProcessUnimportableMemory(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "kept odd", func(_ context.Context, in oddIn) (*tensor.Tensor, error) {
		return oddTensor(dev, in.Odd)
	}, endpoint.Managed()))
	require.NoError(t, endpoint.Register(r, "first", func(_ context.Context, in fixture.ScaleIn) (float32, error) {
		var b bytes.Buffer
		_, err := in.X.WriteTo(&b)
		return float32(b.Len()), err
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	ctx := context.Background()
	x, err := oddTensor(dev, "ipc")
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x.Alias()))
	fixture.PublishOn(t, s, "odd", sd)
	for _, over := range []bool{false, true} {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev), OverSocket: over})
		require.NoError(t, err)
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "kept odd", oddIn{"ipc"})
		h, acquireErr := c.Acquire(ctx, "odd", endpoint.AcquireOptions{})
		n, callErr := endpoint.Call[float32](ctx, c, "first", fixture.ScaleIn{X: x})
		if over {
			require.Error(t, err)
			require.Error(t, acquireErr)
			require.Error(t, callErr)
		} else {
			require.NoError(t, err)
			require.Equal(t, []float32{0, 0, 0, 0}, fixture.Values(t, ref.Value()))
			require.NoError(t, ref.Close())
			require.NoError(t, acquireErr)
			require.Equal(t, []float32{0, 0, 0, 0}, fixture.Values(t, fixture.FirstOf(t, h.StateDict())))
			require.NoError(t, h.Close())
			require.NoError(t, callErr)
			require.EqualValues(t, 16, n)
		}
		require.NoError(t, c.Close())
	}
	require.NoError(t, x.Close())
}
