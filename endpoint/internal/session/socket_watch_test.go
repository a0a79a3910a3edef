package session_test

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// The socket file of a server is removed, and replaced by another file: the server notices and listens again, its
// clients continue, and a successor reports which process holds the lock.
func TestSocketRebind(t *testing.T) {
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{})
	ctx := context.Background()
	before, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer before.Close()
	reachable := func(over bool) bool {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: over})
		if err != nil {
			return false
		}
		defer c.Close()
		return c.ServerID() == s.ID()
	}
	require.NoError(t, os.Remove(s.Socket()))
	_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: s.Socket()})
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	proctest.Eventually(t, fixture.WaitLimit, "it is bound again", func() bool { return reachable(true) && reachable(false) })

	require.NoError(t, os.Remove(s.Socket()))
	require.NoError(t, os.WriteFile(s.Socket(), nil, 0o600))
	time.Sleep(time.Second)
	text, err := os.ReadFile(s.Socket())
	require.NoError(t, err, "a file that is not a socket is kept")
	require.Empty(t, text)
	require.NoError(t, os.Remove(s.Socket()))
	require.NoError(t, os.Remove(s.Socket()+".lock"))
	proctest.Eventually(t, fixture.WaitLimit, "it is bound again", func() bool { return reachable(true) && reachable(false) })
	_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: s.Socket()})
	require.ErrorIs(t, err, endpoint.ErrInUse, "the lock was taken again")
	_, err = before.Ping(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = os.Stat(s.Socket())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Users that a server admits have access to its socket.
func TestSocketModeOfAllowedUsers(t *testing.T) {
	t.Parallel()
	mode := func(opts endpoint.ServerOptions) os.FileMode {
		t.Helper()
		info, err := os.Stat(fixture.Serve(t, opts).Socket())
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	require.Equal(t, os.FileMode(0o600), mode(endpoint.ServerOptions{}))
	require.Equal(t, os.FileMode(0o666), mode(endpoint.ServerOptions{AllowUIDs: []uint32{65534}}))
}

// An owner without a successor is killed: the client's handle reports at once that its lease is lost.
func TestHandleChangedWhenLeaseLost(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	dev := fixture.Device(t)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()
	h, err := c.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	changed := h.Changed()
	require.True(t, h.Leased())
	o.Kill()
	select {
	case <-changed:
	case <-time.After(fixture.WaitLimit):
		t.Fatal("the handle did not report the loss")
	}
	require.False(t, h.Leased())
	require.Equal(t, endpoint.Current, h.State(), "the last known state")
}

// The connection to a running owner is cut: the handle reports that its lease is lost, and that it is restored when the
// client has reconnected.
func TestHandleChangedWhenLeaseReturns(t *testing.T) {
	t.Parallel()
	o, upstream := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	socket := proctest.SocketPath(t)
	first := startCutter(t, socket, upstream, true, -1)
	defer first.close()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{fixture.Device(t)}, OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	h, err := c.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	awaitChange := func(changed <-chan struct{}, what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(fixture.WaitLimit):
			t.Fatal(what, "is not told")
		}
	}
	changed := h.Changed()
	(*first.hangUp.Load())()
	awaitChange(changed, "the loss")
	require.False(t, h.Leased())
	changed = h.Changed()
	require.NoError(t, os.RemoveAll(socket))
	second := startCutter(t, socket, upstream, true, -1)
	defer second.close()
	awaitChange(changed, "the return")
	require.True(t, h.Leased())
	require.Equal(t, endpoint.Current, h.State())
	require.Equal(t, 1, fixture.Holders(o))
	require.NoError(t, h.Close())
	require.NoError(t, c.Close()) // ends the second connection
}
