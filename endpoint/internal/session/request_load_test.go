package session_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// One client requests more than the owner's limit for it, with calls, tasks and tensors.
func TestLimitsRequestBytes(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	const size, fit = 300 << 10, 3
	var held atomic.Int64
	hold := func(ctx context.Context) (int, error) {
		held.Add(1)
		defer held.Add(-1)
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "hold", func(ctx context.Context, _ []byte) (int, error) { return hold(ctx) }))
	require.NoError(t, endpoint.Register(r, "hold tensor", func(ctx context.Context, _ *tensor.Tensor) (int, error) { return hold(ctx) }))
	require.NoError(t, endpoint.Register(r, "length", func(_ context.Context, b []byte) (int, error) { return len(b), nil }))
	s := fixture.Serve(t, endpoint.ServerOptions{
		Registry: r, Logger: fixture.Discard(), Limits: endpoint.Limits{RequestBytes: 1 << 20}, Tasks: endpoint.TaskOptions{Workers: 1},
	})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()
	ctx := context.Background()
	free := func() {
		t.Helper()
		proctest.Eventually(t, fixture.WaitLimit, "there is room again", func() bool {
			n, err := endpoint.Call[int](ctx, c, "length", make([]byte, 5<<20)) // a single request may be as large as a frame
			if err != nil {
				require.ErrorIs(t, err, endpoint.ErrLimit)
			}
			return n == 5<<20
		})
	}
	// calls makes n calls that wait, and checks that one more is refused.
	calls := func(name string, n int, in func(i int) any) {
		t.Helper()
		held.Store(0)
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		var waiting sync.WaitGroup
		for i := range n {
			waiting.Go(func() {
				if err := c.Call(inner, name, in(i), nil); inner.Err() == nil {
					t.Error(err)
				}
			})
		}
		proctest.Eventually(t, fixture.WaitLimit, "all of them wait", func() bool { return held.Load() == int64(n) })
		require.ErrorIs(t, c.Call(ctx, name, in(n), nil), endpoint.ErrLimit)
		_, err := c.Ping(ctx)
		require.NoError(t, err)
		cancel() // cancel frames are read although the owner refuses requests
		waiting.Wait()
		free()
	}
	bytes := func(i int) any {
		b := make([]byte, size)
		b[0] = byte(i) // each is a different call
		return b
	}
	calls("hold", fit, bytes)

	x, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{1})
	require.NoError(t, err)
	defer x.Close()
	calls("hold tensor", 63, func(int) any { return x })

	var tasks []string
	for i := range fit {
		task, err := c.Submit(ctx, "hold", bytes(i))
		require.NoError(t, err)
		tasks = append(tasks, task.ID)
	}
	_, err = c.Submit(ctx, "hold", bytes(fit))
	require.ErrorIs(t, err, endpoint.ErrLimit, "tasks that wait for a worker have their arguments")
	other, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, other.Call(ctx, "length", bytes(0), nil), "another client has a budget of its own")
	for _, id := range tasks {
		_, err := c.Task(id).Cancel(ctx)
		require.NoError(t, err)
	}
	free()
}
