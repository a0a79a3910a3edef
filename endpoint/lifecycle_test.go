package endpoint_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
)

// serve runs an owner in this process.
func serve(t testing.TB, opts endpoint.ServerOptions) *endpoint.Server {
	t.Helper()
	dev := testDevice(t)
	opts.Socket, opts.Devices = cmp.Or(opts.Socket, proctest.SocketPath(t)), []driver.Device{dev}
	s, err := endpoint.NewServer(opts)
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() { s.Serve(context.Background()) })
	t.Cleanup(func() { s.Close(); served.Wait() })
	return s
}

func TestServerShutdownIdleClients(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 1})
	var clients []*child
	for range 4 {
		c := client(t, socket)
		c.acquire(acquisition{Name: "m", Key: "h"})
		clients = append(clients, c)
	}
	// The promise is 100 ms; on a busy machine the test only detects a hang.
	require.Less(t, o.shutdown(time.Minute), promptly)
	for _, c := range clients {
		c.check("h", model{Seed: 1})
		require.ErrorIs(t, c.pingError(), endpoint.ErrUnavailable)
	}
	o.closeServer() // a second close returns nil
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
		s := serve(t, endpoint.ServerOptions{Registry: r, Logger: discard()})
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
	o := start(t)
	before := o.count()
	for range 3 {
		socket := proctest.SocketPath(t)
		o.serve(socket)
		o.publish(model{Name: "m"})
		o.publish(model{Name: "m"})
		c := client(t, socket)
		c.acquire(acquisition{Name: "m", Key: "h"})
		c.publish(model{Name: "n"})
		o.shutdown(waitLimit)
		c.Kill()
	}
	var now proctest.Counts
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("before: %+v, after: %+v", before, now)
		}
	})
	proctest.Eventually(t, waitLimit, "descriptors, mappings and goroutines are back", func() bool {
		now = o.count()
		return now.Within(before)
	})
}

func TestClientLeaks(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m"})
	c := client(t, socket)
	c.hangUp()
	before := c.count()
	for range 3 {
		c.dial(socket)
		c.acquire(acquisition{Name: "m", Key: "h"})
		c.watch("w")
		c.release("h")
		c.acquire(acquisition{Name: "m", Key: "h"})
		c.hangUp()
		c.release("h")
		require.ErrorIs(t, c.nextError("w", 0), endpoint.ErrClosed)
		require.ErrorIs(t, c.pingError(), endpoint.ErrClosed)
	}
	proctest.Eventually(t, waitLimit, "descriptors, mappings and goroutines are back", func() bool {
		now := c.count()
		return now.Within(before)
	})
	proctest.Eventually(t, waitLimit, "the owner knows", func() bool { return holders(o) == 0 })
}

func TestLimitsClients(t *testing.T) {
	t.Parallel()
	s := serve(t, endpoint.ServerOptions{Limits: endpoint.Limits{Clients: 2}, Logger: discard()})
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
	}, waitLimit, tick)
}

func TestLimitsSubscriptions(t *testing.T) {
	t.Parallel()
	s := serve(t, endpoint.ServerOptions{Limits: endpoint.Limits{Subscriptions: 2}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	all, err := c.Watch(ctx)
	require.NoError(t, err, "the first is never refused")
	_, err = c.Watch(ctx, "a")
	require.ErrorIs(t, err, endpoint.ErrLimit)
	require.NoError(t, all.Close())
	proctest.Eventually(t, waitLimit, "there is room again", func() bool {
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
	s := serve(t, endpoint.ServerOptions{
		Limits: endpoint.Limits{Wire: wire.Limits{HandshakeTimeout: 50 * time.Millisecond}}, Logger: discard(),
	})
	silent, err := net.Dial("unix", s.Socket())
	require.NoError(t, err)
	defer silent.Close()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	silent.SetReadDeadline(time.Now().Add(waitLimit))
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
		Socket: proctest.SocketPath(t), Devices: driversOf(testDevice(t)), Registry: registry, Logger: discard(),
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Logger: discard()})
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
