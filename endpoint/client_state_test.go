package endpoint_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// A client that starts first sees owners start, crash and be replaced.
func TestClientStartsBeforeServer(t *testing.T) {
	drivertest.Leaks(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*fixture.WaitLimit)
	defer cancel()
	socket := proctest.SocketPath(t)
	c, err := endpoint.NewClient(endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(fixture.Device(t)), Logger: fixture.Discard()})
	require.NoError(t, err)
	defer c.Close()
	proctest.Eventually(t, fixture.WaitLimit, "attempts that fail", func() bool { return c.Stats().DialFailures > 1 })
	before := c.Stats()
	require.Equal(t, endpoint.StateConnecting, before.State)
	require.Empty(t, before.Server)
	require.Contains(t, before.LastFailure, "no such socket")
	_, err = c.ServerInfo(context.Background())
	require.ErrorIs(t, err, endpoint.ErrUnavailable, "it does not wait for the owner")

	type acquired struct {
		h   *endpoint.Handle
		err error
	}
	got := make(chan acquired, 1)
	go func() {
		h, err := c.Acquire(ctx, "llm", endpoint.AcquireOptions{Wait: true})
		got <- acquired{h, err}
	}()
	one := fixture.Start(t)
	id := one.Serve(socket)
	require.NoError(t, c.Connect(ctx))
	require.Equal(t, endpoint.StateConnected, c.State())
	proctest.Eventually(t, fixture.WaitLimit, "a watcher of the name", func() bool { return c.Stats().Watchers == 1 })
	one.Publish(fixture.Model{Name: "llm", Bytes: 1 << 20})
	a := <-got
	require.NoError(t, a.err)
	defer a.h.Close()
	stats := c.Stats()
	require.Equal(t, id, stats.Server)
	require.WithinDuration(t, time.Now(), stats.ConnectedAt, fixture.WaitLimit)
	require.Equal(t, uint64(1), stats.Connections)
	require.Zero(t, stats.Watchers, "the one that waited is closed")
	require.Equal(t, 1, stats.Handles)
	require.GreaterOrEqual(t, stats.BytesMapped, int64(1<<20))
	require.Equal(t, []endpoint.VersionInUse{{Name: "llm", Server: id, Version: 1, State: endpoint.Current, Newest: 1, Handles: 1, Bytes: stats.BytesMapped}}, stats.Versions)
	second, err := c.Acquire(ctx, "llm", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.Equal(t, 2*stats.BytesMapped, c.Stats().Versions[0].Bytes)
	require.NoError(t, second.Close())

	one.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "the loss of the owner", func() bool { return c.State() == endpoint.StateConnecting })
	two := fixture.Start(t)
	two.Serve(socket)
	require.NoError(t, c.Connect(ctx))
	proctest.Eventually(t, fixture.WaitLimit, "the end of the version", func() bool { return c.Stats().Versions[0].State == endpoint.Orphaned })
	require.Equal(t, uint64(2), c.Stats().Connections)
	require.NoError(t, a.h.Close())
	require.Empty(t, c.Stats().Versions)
	two.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "nobody who needs a connection", func() bool { return c.State() == endpoint.StateIdle })
	require.NoError(t, c.Close())
	require.Equal(t, endpoint.StateClosed, c.State())
	require.ErrorIs(t, c.Connect(ctx), endpoint.ErrClosed)
}

func TestClientOptionsRefused(t *testing.T) {
	t.Parallel()
	_, err := endpoint.NewClient(endpoint.ClientOptions{Socket: string(make([]byte, 200))})
	require.Error(t, err)
}

func TestClientAcquireWait(t *testing.T) {
	ctx, s, _ := fixture.ServerAndClient(t, endpoint.ServerOptions{})
	dev := fixture.Device(t)
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	publish := func(name string) uint64 {
		sd, err := fixture.Synthetic(dev, fixture.Model{})
		require.NoError(t, err)
		version := fixture.PublishOn(t, s, name, sd)
		return version
	}
	waiting := func(opts endpoint.AcquireOptions) <-chan uint64 {
		got := make(chan uint64, 1)
		go func() {
			defer close(got)
			h, err := c.Acquire(ctx, "m", opts)
			if err != nil {
				t.Error(err)
				return
			}
			got <- h.Version()
			h.Close()
		}()
		return got
	}
	_, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.ErrorIs(t, err, endpoint.ErrNotFound, "nobody asked to wait")
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = c.Acquire(short, "m", endpoint.AcquireOptions{Wait: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, endpoint.ErrNotFound)

	first, third := waiting(endpoint.AcquireOptions{Wait: true}), waiting(endpoint.AcquireOptions{Version: 3, Wait: true})
	proctest.Eventually(t, fixture.WaitLimit, "two that wait", func() bool { return c.Stats().Watchers == 2 })
	publish("another")
	require.Equal(t, uint64(1), publish("m"))
	require.Equal(t, uint64(1), <-first)
	publish("m")
	select {
	case v := <-third:
		require.Failf(t, "it did not wait", "version %d", v)
	case <-time.After(10 * time.Millisecond):
	}
	publish("m")
	require.Equal(t, uint64(3), <-third)
	_, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{Version: 1, Wait: true})
	require.ErrorIs(t, err, endpoint.ErrNotFound, "versions do not come back")
}

func TestClientStates(t *testing.T) {
	t.Parallel()
	for state, text := range map[endpoint.ClientState]string{
		endpoint.StateIdle: "idle", endpoint.StateConnecting: "connecting", endpoint.StateConnected: "connected",
		endpoint.StateClosed: "closed", 9: "ClientState(9)",
	} {
		require.Equal(t, text, state.String())
		out, err := json.Marshal(endpoint.ClientStats{State: state})
		require.NoError(t, err)
		require.Contains(t, string(out), `"state":"`+text+`"`)
	}
}

// Every change is signalled by the channel: a missed one hangs the test.
func TestClientTellsOfItsState(t *testing.T) {
	drivertest.Leaks(t)
	socket := proctest.SocketPath(t)
	c, err := endpoint.NewClient(endpoint.ClientOptions{Socket: socket, Logger: fixture.Discard()})
	require.NoError(t, err)
	defer c.Close()
	until := func(want endpoint.ClientState) {
		t.Helper()
		limit := fixture.Timeout()
		for {
			changed := c.Changed()
			if c.State() == want {
				return
			}
			select {
			case <-changed:
			case <-limit:
				require.FailNow(t, "not told", want.String())
			}
		}
	}
	until(endpoint.StateConnecting)
	one := fixture.Start(t)
	one.Serve(socket)
	until(endpoint.StateConnected)
	one.Kill()
	until(endpoint.StateIdle) // nothing needs a connection
	two := fixture.Start(t)
	two.Serve(socket)
	require.NoError(t, c.Connect(t.Context()))
	until(endpoint.StateConnected)
	before := c.Changed()
	require.NoError(t, c.Close())
	<-before
	<-c.Changed()
	require.Equal(t, endpoint.StateClosed, c.State())
}
