package client_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// watching returns a watcher whose request the owner has answered.
func watching(t *testing.T, c *endpoint.Client, end *fixture.OwnerEnd) (*endpoint.Watcher, uint64) {
	t.Helper()
	watchers := make(chan *endpoint.Watcher, 1)
	go func() {
		w, err := c.Watch(context.Background())
		if err != nil {
			t.Error(err)
		}
		watchers <- w
	}()
	id := end.NextRequest(message.OpWatch, nil)
	end.SendFrame(wire.KindResponse, id, message.Watching{})
	w := <-watchers
	require.NotNil(t, w)
	t.Cleanup(func() { w.Close() })
	return w, id
}

func published(name string, version uint64) message.Event {
	return message.Event{Kind: message.EventPublished, Name: name, Version: version}
}

// During a rolling restart the old owner has sent goodbye and finishes a request, and the new one already runs.
func TestServerHandoffWhileDraining(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, old := o.Connected("old")
	w, oldWatch := watching(t, c, old)
	old.SendFrame(wire.KindEvent, oldWatch, published("m", 7))
	require.Equal(t, endpoint.Event{Kind: endpoint.EventPublished, Name: "m", Version: 7, Server: "old"}, next(t, w))
	called := make(chan error, 1)
	go func() { called <- c.Call(context.Background(), "slow", 1, nil) }()
	call := old.NextRequest(message.OpCall, nil)

	old.SendFrame(wire.KindGoodbye, 0, nil)
	require.Equal(t, endpoint.Event{Kind: endpoint.EventOwnerLost, Server: "old"}, next(t, w), "it is told at the goodbye")
	fresh := o.Greet("new")
	watch := fresh.NextRequest(message.OpWatch, nil)
	fresh.SendFrame(wire.KindResponse, watch, message.Watching{})
	require.Equal(t, endpoint.Event{Kind: endpoint.EventOwnerBack, Server: "new"}, next(t, w))

	// Events of the old owner do not count as events of the new one.
	old.SendFrame(wire.KindEvent, oldWatch, published("m", 8))
	old.SendFrame(wire.KindResponse, call, message.Returned{})
	require.NoError(t, <-called)
	fresh.SendFrame(wire.KindEvent, watch, published("m", 1))
	require.Equal(t, endpoint.Event{Kind: endpoint.EventPublished, Name: "m", Version: 1, Server: "new"}, next(t, w))

	old.Close()
	fresh.SendFrame(wire.KindEvent, watch, published("m", 2))
	require.Equal(t, endpoint.Event{Kind: endpoint.EventPublished, Name: "m", Version: 2, Server: "new"}, next(t, w),
		"the end of the old connection is no loss of the new owner")
	fresh.Close()
	require.Equal(t, endpoint.Event{Kind: endpoint.EventOwnerLost, Server: "new"}, next(t, w))
}

func TestClientCloseWhileServerDrains(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, old := o.Connected("old")
	called := make(chan error, 1)
	go func() { called <- c.Call(context.Background(), "slow", 1, nil) }()
	old.NextRequest(message.OpCall, nil)
	old.SendFrame(wire.KindGoodbye, 0, nil)
	proctest.Eventually(t, fixture.WaitLimit, "the client has heard", func() bool { return c.ServerID() == "" })
	pinged := make(chan error, 1)
	go func() { _, err := c.Ping(context.Background()); pinged <- err }()
	fresh := o.Greet("new")
	fresh.SendFrame(wire.KindResponse, fresh.NextRequest(message.OpPing, nil), message.Pong{})
	require.NoError(t, <-pinged)

	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(fixture.WaitLimit):
		require.Fail(t, "it waits for the old owner")
	}
	require.ErrorIs(t, <-called, endpoint.ErrUnavailable)
	old.WaitEnd()
	fresh.WaitEnd()
}

// Owners send goodbye one after another and answer earlier requests. Calls succeed.
func TestServerRollingRestart(t *testing.T) {
	drivertest.Leaks(t)
	const owners, callers, calls = 6, 8, 40
	o := fixture.NewFakeOwner(t)
	dialled := o.Dial(endpoint.ClientOptions{})
	var serving sync.WaitGroup
	serve := func(end *fixture.OwnerEnd) {
		for n := 0; ; n++ {
			frame, err := end.Receive()
			if err != nil {
				return
			}
			end.Send(wire.KindResponse, frame.ID, nil)
			if n == calls {
				end.Send(wire.KindGoodbye, 0, nil)
			}
		}
	}
	first := o.Greet("owner")
	serving.Go(func() { serve(first) })
	c := <-dialled
	require.NotNil(t, c)
	serving.Go(func() {
		for {
			raw, err := o.Listener.AcceptUnix()
			if err != nil {
				return
			}
			conn, err := wire.NewConn(raw, wire.Limits{})
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				if _, err := message.ServerHandshake(conn, message.Hello{Server: "owner"}, nil); err == nil {
					serve(&fixture.OwnerEnd{OwnerEnd: &proctest.OwnerEnd{Conn: conn}})
				}
			})
		}
	})
	var calling sync.WaitGroup
	for range callers {
		calling.Go(func() {
			for range owners * calls / callers {
				if err := c.Call(context.Background(), "value", 1, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	calling.Wait()
	require.NoError(t, c.Close())
	require.NoError(t, o.Listener.Close())
	first.Close()
	serving.Wait()
}
