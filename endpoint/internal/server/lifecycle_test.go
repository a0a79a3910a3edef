package server_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
)

func TestServerShutdownIdleClients(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	var clients []*fixture.Child
	for range 4 {
		c := fixture.Client(t, socket)
		c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
		clients = append(clients, c)
	}
	// The promise is 100 ms; on a busy machine the test only detects a hang.
	require.Less(t, o.Shutdown(time.Minute), fixture.Promptly)
	for _, c := range clients {
		c.Check("h", fixture.Model{Seed: 1})
		require.ErrorIs(t, c.PingError(), endpoint.ErrUnavailable)
	}
	closeServer(o) // a second close returns nil
}

// A function may end with its context before the connection ends. Its client must see a missing owner, and not a closed
// file.
func TestServerCloseCause(t *testing.T) {
	t.Parallel()
	causes := make(chan error, 2)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ struct{}) (int, error) {
		causes <- nil
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return 0, context.Cause(ctx)
	}))
	for _, overSocket := range []bool{true, false} {
		s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard()})
		c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: overSocket})
		require.NoError(t, err)
		called := make(chan error, 1)
		go func() {
			_, err := endpoint.Call[int](context.Background(), c, "wait", struct{}{})
			called <- err
		}()
		<-causes
		require.NoError(t, s.Close())
		cause := <-causes
		require.ErrorIs(t, cause, endpoint.ErrUnavailable)
		require.ErrorIs(t, cause, endpoint.ErrServerClosed)
		require.NotContains(t, cause.Error(), "file")
		require.ErrorIs(t, <-called, endpoint.ErrUnavailable)
		require.NoError(t, c.Close())
	}
}

func TestServerLeaks(t *testing.T) {
	t.Parallel()
	o := fixture.Start(t)
	before := o.Count()
	for range 3 {
		socket := proctest.SocketPath(t)
		o.Serve(socket)
		o.Publish(fixture.Model{Name: "m"})
		o.Publish(fixture.Model{Name: "m"})
		c := fixture.Client(t, socket)
		c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
		c.Publish(fixture.Model{Name: "n"})
		o.Shutdown(fixture.WaitLimit)
		c.Kill()
	}
	var now proctest.Counts
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("before: %+v, after: %+v", before, now)
		}
	})
	proctest.Eventually(t, fixture.WaitLimit, "descriptors, mappings and goroutines are back", func() bool {
		now = o.Count()
		return now.Within(before)
	})
}

func TestClientLeaks(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m"})
	c := fixture.Client(t, socket)
	hangUp(c)
	before := c.Count()
	for range 3 {
		c.Dial(socket)
		c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
		c.Watch("w")
		c.Release("h")
		c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
		hangUp(c)
		c.Release("h")
		require.ErrorIs(t, c.NextError("w", 0), endpoint.ErrClosed)
		require.ErrorIs(t, c.PingError(), endpoint.ErrClosed)
	}
	proctest.Eventually(t, fixture.WaitLimit, "descriptors, mappings and goroutines are back", func() bool {
		now := c.Count()
		return now.Within(before)
	})
	proctest.Eventually(t, fixture.WaitLimit, "the owner knows", func() bool { return fixture.Holders(o) == 0 })
}

func TestLimitsClients(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Limits: endpoint.Limits{Clients: 2}, Logger: fixture.Discard()})
	ctx := context.Background()
	var clients []*endpoint.Client
	for range 2 {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
		require.NoError(t, err)
		clients = append(clients, c)
	}
	_, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.ErrorIs(t, err, endpoint.ErrLimit)
	for _, c := range clients {
		_, err := c.Ping(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
		if err == nil {
			c.Close()
		}
		return err == nil
	}, fixture.WaitLimit, fixture.Tick)
}

func TestLimitsSubscriptions(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Limits: endpoint.Limits{Subscriptions: 2}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	all, err := c.Watch(ctx)
	require.NoError(t, err, "the first is never refused")
	_, err = c.Watch(ctx, "a")
	require.ErrorIs(t, err, endpoint.ErrLimit)
	require.NoError(t, all.Close())
	proctest.Eventually(t, fixture.WaitLimit, "there is room again", func() bool {
		_, err := c.Watch(ctx, "a")
		return err == nil
	})
	_, err = c.Watch(ctx, "b", "c")
	require.ErrorIs(t, err, endpoint.ErrLimit, "each name counts")
	_, err = c.Watch(ctx, "b")
	require.NoError(t, err)
	_, err = c.Watch(ctx)
	require.ErrorIs(t, err, endpoint.ErrLimit)
}

func TestSessionSilentPeer(t *testing.T) {
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{
		Limits: endpoint.Limits{Wire: wire.Limits{HandshakeTimeout: 50 * time.Millisecond}}, Logger: fixture.Discard(),
	})
	silent, err := net.Dial("unix", s.Socket())
	require.NoError(t, err)
	defer silent.Close()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	silent.SetReadDeadline(time.Now().Add(fixture.WaitLimit))
	for {
		if _, err := silent.Read(make([]byte, 512)); err != nil {
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			return // the owner disconnected
		}
	}
}

// The context of Serve shuts the server down in order: requests in flight end, clients keep their memory.
func TestServerServeContext(t *testing.T) {
	t.Parallel()
	started, finish := make(chan struct{}), make(chan struct{})
	registry := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(registry, "slow", func(context.Context, int) (int, error) {
		close(started)
		<-finish
		return 7, nil
	}))
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: proctest.SocketPath(t), Devices: fixture.DriversOf(fixture.Device(t)), Registry: registry, Logger: fixture.Discard(),
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Logger: fixture.Discard()})
	require.NoError(t, err)
	defer c.Close()

	answer := make(chan error, 1)
	go func() {
		got, err := endpoint.Call[int](context.Background(), c, "slow", 1)
		if err == nil && got != 7 {
			err = fmt.Errorf("the answer is %d", got)
		}
		answer <- err
	}()
	<-started
	stop()
	select {
	case err := <-served:
		require.Failf(t, "Serve returned before the call in flight had ended", "%v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(finish)
	require.NoError(t, <-answer)
	require.NoError(t, <-served)
	require.NoFileExists(t, s.Socket())
	_, err = s.List(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.Withdraw(ctx, "m"), context.Canceled)
}

// hangUpOp closes a client.
var hangUpOp = fixture.NewOp("hang up", func(w *fixture.Worker, _ context.Context, _ fixture.None) (fixture.None, error) {
	return fixture.None{}, w.Client.Close()
})

// hangUp closes a client.
func hangUp(c *fixture.Child) {
	c.T.Helper()
	hangUpOp.Must(c.Process, fixture.None{})
}
