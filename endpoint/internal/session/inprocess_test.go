package session_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// inProcessPair returns a server with the test endpoints and a client of it, both in this process.
func inProcessPair(t testing.TB, opts endpoint.ServerOptions) (*endpoint.Server, *endpoint.Client, driver.Device, *fixture.Counters) {
	t.Helper()
	dev, counts := fixture.Device(t), new(fixture.Counters)
	opts.Registry = fixture.Registry(dev, counts)
	s := fixture.Serve(t, opts)
	files := drivertest.OpenFiles()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev), Label: "next door"})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.Equal(t, files, drivertest.OpenFiles(), "there is no socket between them")
	return s, c, dev, counts
}

func TestInProcessSession(t *testing.T) {
	drivertest.Leaks(t)
	s, c, dev, _ := inProcessPair(t, endpoint.ServerOptions{Label: "owner"})
	ctx := context.Background()
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 1})
	require.NoError(t, err)
	version := fixture.PublishOn(t, s, "m", sd)
	require.EqualValues(t, 1, version)
	w, err := c.Watch(ctx)
	require.NoError(t, err)
	event, err := fixture.NextEvent(ctx, w)
	require.NoError(t, err)
	require.Equal(t, endpoint.Event{Kind: endpoint.EventPublished, Name: "m", Version: 1, Server: s.ID()}, event)

	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.Equal(t, s.ID(), h.ServerID())
	attached := fixture.FirstOf(t, h.StateDict())
	require.Same(t, fixture.FirstOf(t, sd).Storage(), attached.Storage().Origin(), "nothing is mapped twice")
	require.ErrorIs(t, attached.Zero(), driver.ErrReadOnly)
	holders := fixture.ListOf(s)[0].Versions[0].Holders
	require.Len(t, holders, 1)
	require.Equal(t, "next door", holders[0].Label)
	require.EqualValues(t, os.Getpid(), holders[0].PID)
	info, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	last := info.Sessions[len(info.Sessions)-1]
	require.EqualValues(t, 1, last.Leases)
	require.Equal(t, "next door", last.Label)

	mine, err := fixture.Synthetic(dev, fixture.Model{Seed: 2})
	require.NoError(t, err)
	changed := h.Changed()
	version, err = c.Publish(ctx, "m", mine, endpoint.PublishOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, version)
	require.NoError(t, mine.Close())
	<-changed
	require.Equal(t, endpoint.Superseded, h.State())
	event, err = fixture.NextEvent(ctx, w)
	require.NoError(t, err)
	require.EqualValues(t, 2, event.Version)
	next, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.NoError(t, (&fixture.Worker{Dev: dev}).Check(next, fixture.Model{Seed: 2}), "the owner keeps what was closed here")
	require.NoError(t, next.Close())
	require.NoError(t, h.Close())
	proctest.Eventually(t, fixture.WaitLimit, "version 1 is freed", func() bool { return len(fixture.ListOf(s)[0].Versions) == 1 })

	held, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the lease is back", func() bool { return len(fixture.ListOf(s)[0].Versions[0].Holders) == 0 })
	require.NoError(t, (&fixture.Worker{Dev: dev}).Check(held, fixture.Model{Seed: 2}))
	require.NoError(t, held.Close())
	_, err = fixture.NextEvent(ctx, w)
	require.ErrorIs(t, err, endpoint.ErrClosed)
	_, err = c.Ping(ctx)
	require.ErrorIs(t, err, endpoint.ErrClosed)
}

func TestInProcessCall(t *testing.T) {
	drivertest.Leaks(t)
	s, c, dev, counts := inProcessPair(t, endpoint.ServerOptions{})
	ctx := context.Background()
	x, err := fixture.Filled(dev, 4, 3)
	require.NoError(t, err)
	defer x.Close()
	sum, err := endpoint.Call[float64](ctx, c, "sum", fixture.ScaleIn{X: x})
	require.NoError(t, err)
	require.EqualValues(t, 12, sum)
	a, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	files := drivertest.OpenFiles()
	b, err := endpoint.Call[*tensor.Tensor](ctx, s, "plain model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	require.Same(t, a.Storage().Memory(), b.Storage().Memory(), "one result for both")
	require.EqualValues(t, 1, counts.Get("model"))
	require.NoError(t, a.Close())
	require.Equal(t, []float32{4, 4, 4, 4}, fixture.Values(t, b))
	require.NoError(t, b.Close())
	require.Equal(t, files, drivertest.OpenFiles(), "nothing is exported")
	_, err = s.InvalidateEndpoint(ctx, "plain model")
	require.NoError(t, err)

	mine, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	own, err := endpoint.CallManaged[*tensor.Tensor](ctx, s, "model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	require.Equal(t, mine.ID(), own.ID())
	about, err := mine.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, about.Refs)
	released, err := mine.Release(ctx)
	require.NoError(t, err)
	require.True(t, released)
	require.NoError(t, own.Err())
	require.NoError(t, mine.Close())
	mine, err = endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	destroyObject(t, s, own.ID())
	<-mine.Done()
	require.ErrorIs(t, mine.Err(), endpoint.ErrStale)
	require.Equal(t, []float32{2, 2}, fixture.Values(t, mine.Value()))
	require.NoError(t, mine.Close())
	require.NoError(t, own.Close())

	task, err := c.Submit(ctx, "model task", fixture.ModelIn{Size: 3})
	require.NoError(t, err)
	end, err := task.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCompleted, end.State)
	var made *tensor.Tensor
	require.NoError(t, task.Result(ctx, &made))
	require.NoError(t, made.Close())

	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Call(short, "gated run", fixture.GateIn{Gate: "never"}, nil), context.DeadlineExceeded)
	proctest.Eventually(t, fixture.WaitLimit, "the function is told to stop", func() bool { return counts.Get("gated run told to stop") == 1 })
	require.ErrorIs(t, c.Call(ctx, "nothing", nil, nil), endpoint.ErrNoEndpoint)
}

func TestInProcessRefsEndWithClient(t *testing.T) {
	drivertest.Leaks(t)
	s, c, _, _ := inProcessPair(t, endpoint.ServerOptions{})
	ctx := context.Background()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "fresh model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	own, err := endpoint.CallManaged[*tensor.Tensor](ctx, s, "fresh model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.ErrorIs(t, ref.Err(), endpoint.ErrClosed)
	proctest.Eventually(t, fixture.WaitLimit, "its object is gone, the other is not", func() bool {
		info, err := s.ServerInfo(ctx)
		require.NoError(t, err)
		return info.Stats.Objects == 1 && info.Stats.Clients == 0
	})
	require.Equal(t, []float32{2, 2}, fixture.Values(t, ref.Value()))
	require.NoError(t, ref.Close())
	require.NoError(t, own.Close())
}

func TestInProcessFrameLimit(t *testing.T) {
	_, c, _, _ := inProcessPair(t, endpoint.ServerOptions{Limits: endpoint.Limits{Wire: wire.Limits{Frame: 1 << 16}}})
	ctx := context.Background()
	err := c.Call(ctx, "bytes", map[string]any{"Data": make([]byte, 1<<17)}, nil)
	require.ErrorIs(t, err, wire.ErrTooLarge)
	err = c.Call(ctx, "bytes", map[string]any{"N": 1 << 17}, nil)
	require.ErrorIs(t, err, wire.ErrTooLarge)
	require.False(t, errors.Is(err, endpoint.ErrUnavailable))
	_, err = c.Ping(ctx)
	require.NoError(t, err, "the connection goes on")
}

func BenchmarkInProcessCall(b *testing.B) {
	s, c, _, _ := inProcessPair(b, endpoint.ServerOptions{})
	over, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(b, err)
	defer over.Close()
	for name, through := range map[string]endpoint.Caller{"server": s, "in process": c, "socket": over} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var n int
				if err := through.Call(context.Background(), "double", struct{ N int }{21}, &n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
