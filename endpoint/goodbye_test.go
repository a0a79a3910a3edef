package endpoint_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire"
)

// An owner that stops during the handshake counts as missing, not as broken, and a client that waits for an owner
// continues to wait.
func TestClientDialServerLeaves(t *testing.T) {
	drivertest.Leaks(t)
	o := newFakeOwner(t)
	failed := make(chan error, 1)
	go func() {
		_, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: o.socket})
		failed <- err
	}()
	o.accept().say(wire.KindGoodbye, 0, nil)
	err := <-failed
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.NotErrorIs(t, err, endpoint.ErrProtocol)

	dialled := o.dial(endpoint.ClientOptions{Wait: true})
	for range 3 {
		o.accept().say(wire.KindGoodbye, 0, nil)
	}
	o.greet("next")
	c := <-dialled
	require.NotNil(t, c)
	require.NoError(t, c.Close())
}

func TestSessionGoodbyeAfterHelloOnly(t *testing.T) {
	drivertest.Leaks(t)
	s := serve(t, endpoint.ServerOptions{Logger: discard()})
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Socket()})
	require.NoError(t, err)
	conn, err := wire.NewConn(raw, wire.Limits{})
	require.NoError(t, err)
	defer conn.Close()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true}) // the server has accepted both
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, s.Shutdown(context.Background()))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(waitLimit)))
	frame, err := conn.Receive()
	require.Error(t, err, "%s", frame.Kind)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}
