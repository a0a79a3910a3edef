package compute_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// double returns twice its argument, as float32.
var double = compute.Func(func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	values, err := tensor.Float32s(in)
	if err != nil {
		return nil, err
	}
	for i := range values {
		values[i] *= 2
	}
	return tensor.FromSlice(in.Device(), in.Shape(), values)
})

// identity returns its argument.
var identity = compute.Func(func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) { return in.Alias(), nil })

// start serves on a free port until the test ends.
func start(t testing.TB, opts compute.ServerOptions) (*compute.Server, string) {
	t.Helper()
	s, err := compute.NewServer(t.Context(), opts)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() { cancel(); <-done })
	return s, l.Addr().String()
}

func dial(t testing.TB, address string, opts compute.ClientOptions) *compute.Client {
	t.Helper()
	c, err := compute.Dial(t.Context(), address, opts)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func floats(t testing.TB, dev *host.Device, values ...float32) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(dev, tensor.Shape{int64(len(values))}, values)
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}
