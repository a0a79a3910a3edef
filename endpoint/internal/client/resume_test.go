package client_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// refuse answers a request with an error.
func refuse(e *fixture.OwnerEnd, id uint64, code message.Code) {
	e.T.Helper()
	e.SendFrame(wire.KindError, id, message.Error{Code: code, Message: "no"})
}

// hold gives the client a reference to an object.
func hold(e *fixture.OwnerEnd, c *endpoint.Client, object, server string, first bool) *endpoint.Ref[int] {
	e.T.Helper()
	held := holding(c)
	if first {
		e.SendFrame(wire.KindResponse, e.NextRequest(message.OpObjectWatch, nil), message.WatchingObjects{})
	}
	e.SendFrame(wire.KindResponse, e.NextRequest(message.OpCall, nil), returned(object, server))
	ref := <-held
	require.NotNil(e.T, ref)
	e.T.Cleanup(func() { ref.Close() })
	return ref
}

func TestReconnectBreaksAgain(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	w, _ := watching(t, c, end)
	ref := hold(end, c, "a", "one", true)
	lost := endpoint.Event{Kind: endpoint.EventOwnerLost, Server: "one"}
	back := endpoint.Event{Kind: endpoint.EventOwnerBack, Server: "one"}
	for range 3 {
		end.Close()
		require.Equal(t, lost, next(t, w))
		end = o.Greet("one")
		require.Equal(t, back, next(t, w))
		for referred := false; !referred; {
			id, request := end.Request()
			switch request.Op {
			case message.OpWatch:
				end.SendFrame(wire.KindResponse, id, message.Watching{})
			case message.OpObjectRefer:
				referred = true
			}
		}
	}
	require.NoError(t, ref.Err())
	end.Close()
	require.Equal(t, lost, next(t, w))
	end = o.Greet("one")
	require.Equal(t, back, next(t, w))
	for range 3 {
		switch id, request := end.Request(); request.Op {
		case message.OpWatch:
			end.SendFrame(wire.KindResponse, id, message.Watching{})
		case message.OpObjectRefer:
			end.SendFrame(wire.KindResponse, id, message.ObjectInfo{ID: "a", Server: "one"})
		case message.OpObjectWatch:
			end.SendFrame(wire.KindResponse, id, message.WatchingObjects{})
		}
	}
	pings(t, c, end)
	require.NoError(t, ref.Err())
}

func TestReconnectRefsConcurrently(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	const refs = 32
	for n := range refs {
		hold(end, c, string(rune('a'+n)), "one", n == 0)
	}
	end.Close()
	end = o.Greet("one")
	end.SendFrame(wire.KindResponse, end.NextRequest(message.OpObjectWatch, nil), message.WatchingObjects{})
	asked := map[uint64]string{}
	for range refs { // before any is answered
		var in message.Object
		id := end.NextRequest(message.OpObjectRefer, &in)
		asked[id] = in.ID
	}
	for id, object := range asked {
		end.SendFrame(wire.KindResponse, id, message.ObjectInfo{ID: object, Server: "one"})
	}
	pings(t, c, end)
}

func TestReconnectRefused(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	w, _ := watching(t, c, end)
	ref := hold(end, c, "a", "one", true)
	end.Close()
	require.Equal(t, endpoint.EventOwnerLost, next(t, w).Kind)
	end = o.Greet("one")
	for range 3 {
		id, _ := end.Request()
		refuse(end, id, message.CodeResourceExhausted)
	}
	pings(t, c, end)
	<-ref.Done()
	require.ErrorIs(t, ref.Err(), endpoint.ErrStale)
	for {
		e, err := fixture.NextEvent(context.Background(), w)
		if err != nil {
			require.ErrorIs(t, err, endpoint.ErrLimit)
			break
		}
		require.Equal(t, endpoint.EventOwnerBack, e.Kind)
	}
}

// A client closes while its state is resumed on a new connection. Waiting calls receive ErrClosed; no context of theirs
// has ended.
func TestClientCloseDuringReconnect(t *testing.T) {
	drivertest.Leaks(t)
	owner := fixture.NewFakeOwner(t)
	c, end := owner.Connected("one")
	watching := make(chan error, 1)
	go func() { _, err := c.Watch(context.Background()); watching <- err }()
	end.SendFrame(wire.KindResponse, end.NextRequest(message.OpWatch, nil), message.Watching{})
	require.NoError(t, <-watching)
	end.Close()

	again := owner.Greet("one")
	again.NextRequest(message.OpWatch, nil) // never answered
	calling := make(chan error, 1)
	go func() { calling <- c.Call(context.Background(), "same", 1, nil) }()
	time.Sleep(20 * time.Millisecond) // until the call waits; a later call is refused with the same error
	require.NoError(t, c.Close())
	err := <-calling
	require.ErrorIs(t, err, endpoint.ErrClosed)
	require.NotErrorIs(t, err, context.Canceled)
}

// An owner that stops during the handshake counts as missing, not as broken, and a client that waits for an owner
// continues to wait.
func TestClientDialServerLeaves(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	failed := make(chan error, 1)
	go func() {
		_, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: o.Socket})
		failed <- err
	}()
	o.Accept().SendFrame(wire.KindGoodbye, 0, nil)
	err := <-failed
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.NotErrorIs(t, err, endpoint.ErrProtocol)

	dialled := o.Dial(endpoint.ClientOptions{Wait: true})
	for range 3 {
		o.Accept().SendFrame(wire.KindGoodbye, 0, nil)
	}
	o.Greet("next")
	c := <-dialled
	require.NotNil(t, c)
	require.NoError(t, c.Close())
}

func TestSessionGoodbyeAfterHelloOnly(t *testing.T) {
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Socket()})
	require.NoError(t, err)
	conn, err := wire.NewConn(raw, wire.Limits{})
	require.NoError(t, err)
	defer conn.Close()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true}) // the server has accepted both
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, s.Shutdown(context.Background()))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(fixture.WaitLimit)))
	frame, err := conn.Receive()
	require.Error(t, err, "%s", frame.Kind)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}
