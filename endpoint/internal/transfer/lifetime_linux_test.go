package transfer_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// received is a tensor of 8 float32 from 0 that came from an owner, and what closes it.
type received struct {
	x     *tensor.Tensor
	close func() error
}

// Views of what an owner sent live as long as the version, result or tensor that they were made from: after its end they
// return ErrClosed, also for readers that are at work then, and nothing is left. In a child on a GPU the memory is that of
// the stand-in.
func TestViewsOfReceivedMemory(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	values := []float32{0, 1, 2, 3, 4, 5, 6, 7}
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "fresh", func(ctx context.Context, _ struct{}) (*tensor.Tensor, error) {
		return tensor.FromSlice(endpoint.ResultDevice(ctx, dev), tensor.Shape{2, 4}, values)
	}))
	require.NoError(t, endpoint.Register(r, "cached", func(context.Context, struct{}) (*tensor.Tensor, error) {
		return tensor.FromSlice(dev, tensor.Shape{2, 4}, values)
	}, endpoint.Cached()))
	require.NoError(t, endpoint.Register(r, "managed", func(context.Context, struct{}) (*tensor.Tensor, error) {
		return tensor.FromSlice(dev, tensor.Shape{2, 4}, values)
	}, endpoint.Managed()))
	// Results can be views: of the arguments, and of what the function keeps.
	require.NoError(t, endpoint.Register(r, "view", func(_ context.Context, in struct{ X *tensor.Tensor }) (*tensor.Tensor, error) {
		return in.X.Reshape(tensor.Shape{2, 4})
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Socket: proctest.SocketPath(t), Devices: []driver.Device{dev}, Registry: r})
	sd := module.NewStateDict()
	x, err := tensor.FromSlice(dev, tensor.Shape{2, 4}, values)
	require.NoError(t, err)
	require.NoError(t, sd.Set("w", x))
	_, err = s.Publish(context.Background(), "m", sd, endpoint.PublishOptions{})
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	c := fixture.SocketClient(t, s)
	own, err := tensor.FromSlice(dev, tensor.Shape{8}, values)
	require.NoError(t, err)
	defer own.Close()

	call := func(name string, in any) func(t *testing.T) received {
		return func(t *testing.T) received {
			x, err := endpoint.Call[*tensor.Tensor](context.Background(), c, name, in)
			require.NoError(t, err)
			return received{x, x.Close}
		}
	}
	for name, get := range map[string]func(t *testing.T) received{
		"version": func(t *testing.T) received {
			h, err := c.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
			require.NoError(t, err)
			w, _ := h.StateDict().Get("w")
			require.NoError(t, w.Close(), "has no effect")
			return received{w, h.Close}
		},
		"fresh":  call("fresh", struct{}{}),
		"cached": call("cached", struct{}{}),
		"view":   call("view", struct{ X *tensor.Tensor }{own}),
		"managed": func(t *testing.T) received {
			ref, err := endpoint.CallManaged[*tensor.Tensor](context.Background(), c, "managed", struct{}{})
			require.NoError(t, err)
			return received{ref.Value(), ref.Close}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				got := get(t)
				viewEnds(t, got)
			}
		})
	}
}

func viewEnds(t *testing.T, of received) {
	t.Helper()
	row, err := of.x.Narrow(0, 1, 1)
	require.NoError(t, err)
	v, err := row.Select(-1, 3)
	require.NoError(t, err)
	require.Equal(t, float32(7), must(tensor.Item[float32](v))(t))
	alias := v.Alias()
	var reading, readers sync.WaitGroup
	for range 2 {
		reading.Add(1)
		readers.Go(func() {
			begun := sync.OnceFunc(reading.Done)
			defer begun()
			for {
				got, err := tensor.Float32s(row)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if err != nil || got[3] != 7 {
					t.Error(got, err)
					return
				}
				begun()
			}
		})
	}
	reading.Wait()
	require.NoError(t, of.close())
	readers.Wait()
	for _, x := range []*tensor.Tensor{of.x, row, v} {
		_, err := x.ReadBytes()
		require.ErrorIs(t, err, os.ErrClosed)
		_, err = tensor.RawData(x)
		require.ErrorIs(t, err, os.ErrClosed)
	}
	require.Equal(t, float32(7), must(tensor.Item[float32](alias))(t), "the alias keeps the memory")
	require.NoError(t, alias.Close())
}
