package engine_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// streaming returns a server in this process whose stream counts its items.
func streaming(t *testing.T, made *atomic.Int64, ended chan struct{}) (*endpoint.Server, *endpoint.Client) {
	r := endpoint.NewRegistry()
	dev := fixture.Device(t)
	require.NoError(t, endpoint.RegisterStream(r, "stream", func(ctx context.Context, n int) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) {
			defer func() { ended <- struct{}{} }()
			for i := range n {
				x, err := fixture.Filled(dev, 1, float32(i))
				made.Add(1)
				if !yield(x, err) {
					return
				}
			}
			if n == 7 {
				yield(nil, errors.New("seven"))
			}
		}
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: fixture.DriversOf(fixture.Device(t))})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return s, c
}

func TestStreamBackpressure(t *testing.T) {
	drivertest.Leaks(t)
	var made atomic.Int64
	ended := make(chan struct{}, 1)
	s, c := streaming(t, &made, ended)
	for _, row := range []struct {
		through endpoint.Caller
		ahead   int64
	}{{c, 2*message.StreamWindow + 2}, {s, 2*message.StreamWindow + 2}} {
		made.Store(0)
		taken := int64(0)
		for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), row.through, "stream", 1000) {
			require.NoError(t, err)
			require.Equal(t, []float32{float32(taken)}, fixture.Values(t, x))
			x.Close()
			taken++
			require.LessOrEqual(t, made.Load(), taken+row.ahead)
		}
		require.EqualValues(t, 1000, taken)
		<-ended
	}
}

func TestStreamBreakStopsFunction(t *testing.T) {
	drivertest.Leaks(t)
	var made atomic.Int64
	ended := make(chan struct{}, 1)
	s, c := streaming(t, &made, ended)
	for _, through := range []endpoint.Caller{c, s} {
		for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), through, "stream", 1<<30) {
			require.NoError(t, err)
			x.Close()
			break
		}
		<-ended
		ctx, cancel := context.WithCancel(context.Background())
		var last error
		for x, err := range endpoint.Stream[*tensor.Tensor](ctx, through, "stream", 1<<30) {
			cancel()
			if last = err; err == nil {
				x.Close()
			}
		}
		cancel()
		require.ErrorIs(t, last, context.Canceled)
		<-ended
		n := 0
		for x, err := range endpoint.Stream[*tensor.Tensor](context.Background(), through, "stream", 7) {
			if last = err; err == nil {
				x.Close()
				n++
			}
		}
		require.Equal(t, 7, n)
		require.ErrorContains(t, last, "seven")
		<-ended
		for _, err := range endpoint.Stream[int](context.Background(), through, "nothing", 7) {
			require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
		}
	}
}

func TestStreamDeadline(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var streaming sync.WaitGroup
	streaming.Go(func() {
		for _, err := range endpoint.Stream[int](ctx, c, "items", 1) {
			t.Error(err)
		}
	})
	id, request := end.Request()
	require.Equal(t, message.OpStream, request.Op)
	require.Greater(t, request.Timeout, 50*time.Minute)
	require.LessOrEqual(t, request.Timeout, time.Hour)
	end.SendFrame(wire.KindResponse, id, message.Returned{})
	streaming.Wait()
}

func TestStreamInTaskYieldsWorker(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Workers: 1}})
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, endpoint.Register(r, "item", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.AsTask()))
	require.NoError(t, endpoint.RegisterStream(r, "items", func(ctx context.Context, n int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(endpoint.Call[int](ctx, c, "item", i)) {
					return
				}
			}
		}
	}))
	for name, through := range map[string]endpoint.Caller{"over the socket": c, "within the process": s} {
		require.NoError(t, endpoint.Register(r, name, func(ctx context.Context, n int) (sum int, err error) {
			for i, err := range endpoint.Stream[int](ctx, through, "items", n) {
				if err != nil {
					return 0, err
				}
				sum += i
			}
			return sum, nil
		}, endpoint.AsTask()))
		sum, err := endpoint.Call[int](ctx, c, name, 40)
		require.NoError(t, err, name)
		require.Equal(t, 40*39/2, sum)
	}
}
