package endpoint_test

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
	"github.com/sharedtensor/sharedtensor/endpoint/internal/endpointtest"
)

// TestSocketRebind removes the socket file of a server, and puts another file in its place: the server
// notices and listens again, clients that it has go on, and a successor hears which process holds the lock. (D18)
func TestSocketRebind(t *testing.T) {
	drivertest.Leaks(t)
	s := serve(t, endpoint.ServerOptions{})
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
	endpointtest.Eventually(t, waitLimit, "it is bound again", func() bool { return reachable(true) && reachable(false) })

	require.NoError(t, os.Remove(s.Socket()))
	require.NoError(t, os.WriteFile(s.Socket(), nil, 0o600))
	time.Sleep(time.Second)
	text, err := os.ReadFile(s.Socket())
	require.NoError(t, err, "what is no socket is left alone")
	require.Empty(t, text)
	require.NoError(t, os.Remove(s.Socket()))
	require.NoError(t, os.Remove(s.Socket()+".lock"))
	endpointtest.Eventually(t, waitLimit, "it is bound again", func() bool { return reachable(true) && reachable(false) })
	_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: s.Socket()})
	require.ErrorIs(t, err, endpoint.ErrInUse, "the lock was taken again")
	_, err = before.Ping(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = os.Stat(s.Socket())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestSocketModeOfAllowedUsers has a server that lets other users in give them the rights to its socket. (D15)
func TestSocketModeOfAllowedUsers(t *testing.T) {
	mode := func(opts endpoint.ServerOptions) os.FileMode {
		t.Helper()
		info, err := os.Stat(serve(t, opts).Socket())
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	require.Equal(t, os.FileMode(0o600), mode(endpoint.ServerOptions{}))
	require.Equal(t, os.FileMode(0o666), mode(endpoint.ServerOptions{AllowUIDs: []uint32{65534}}))
}

// TestHandleChangedWhenLeaseLost kills an owner that has no successor: the handle of a client tells at once that its
// lease is lost. (D19)
func TestHandleChangedWhenLeaseLost(t *testing.T) {
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 1})
	dev := testDevice(t)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()
	h, err := c.Acquire(context.Background(), "m")
	require.NoError(t, err)
	defer h.Close()
	changed := h.Changed()
	require.True(t, h.Leased())
	o.Kill()
	select {
	case <-changed:
	case <-time.After(waitLimit):
		t.Fatal("the loss is not told")
	}
	require.False(t, h.Leased())
	require.Equal(t, endpoint.Current, h.State(), "as it was heard last")
}

// TestHandleChangedWhenLeaseReturns cuts the connection to an owner that lives on: the handle tells that its lease is
// lost, and that it is back when the client has found the owner again. (D19)
func TestHandleChangedWhenLeaseReturns(t *testing.T) {
	o, upstream := owner(t)
	o.publish(model{Name: "m", Seed: 1})
	socket := endpointtest.SocketPath(t)
	first := startCutter(t, socket, upstream, true, -1)
	defer first.close()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{testDevice(t)}, OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	h, err := c.Acquire(context.Background(), "m")
	require.NoError(t, err)
	defer h.Close()
	awaitChange := func(changed <-chan struct{}, what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(waitLimit):
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
	require.Equal(t, 1, holders(o))
	require.NoError(t, h.Close())
	require.NoError(t, c.Close()) // ends the second connection
}
