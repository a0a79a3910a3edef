package endpoint_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// request returns the next request.
func (e *ownerEnd) request() (uint64, message.Request) {
	e.t.Helper()
	frame := e.receive()
	defer frame.Files.Close()
	require.Equal(e.t, wire.KindRequest, frame.Kind)
	request, err := message.ParseRequest(frame.Body)
	require.NoError(e.t, err)
	return frame.ID, request
}

// refuse answers a request with an error.
func (e *ownerEnd) refuse(id uint64, code message.Code) {
	e.t.Helper()
	e.say(wire.KindError, id, message.Error{Code: code, Message: "no"})
}

// hold gives the client a reference to an object.
func (e *ownerEnd) hold(c *endpoint.Client, object, server string, first bool) *endpoint.Ref[int] {
	e.t.Helper()
	held := holding(c)
	if first {
		e.say(wire.KindResponse, e.asked(message.OpObjectWatch, nil), message.WatchingObjects{})
	}
	e.say(wire.KindResponse, e.asked(message.OpCall, nil), returned(object, server))
	ref := <-held
	require.NotNil(e.t, ref)
	e.t.Cleanup(func() { ref.Close() })
	return ref
}

func TestReconnectBreaksAgain(t *testing.T) {
	drivertest.Leaks(t)
	o := newFakeOwner(t)
	c, end := o.connected("one")
	w, _ := watching(t, c, end)
	ref := end.hold(c, "a", "one", true)
	lost := endpoint.Event{Kind: endpoint.EventOwnerLost, Server: "one"}
	back := endpoint.Event{Kind: endpoint.EventOwnerBack, Server: "one"}
	for range 3 {
		end.Close()
		require.Equal(t, lost, next(t, w))
		end = o.greet("one")
		require.Equal(t, back, next(t, w))
		for referred := false; !referred; {
			id, request := end.request()
			switch request.Op {
			case message.OpWatch:
				end.say(wire.KindResponse, id, message.Watching{})
			case message.OpObjectRefer:
				referred = true
			}
		}
	}
	require.NoError(t, ref.Err())
	end.Close()
	require.Equal(t, lost, next(t, w))
	end = o.greet("one")
	require.Equal(t, back, next(t, w))
	for range 3 {
		switch id, request := end.request(); request.Op {
		case message.OpWatch:
			end.say(wire.KindResponse, id, message.Watching{})
		case message.OpObjectRefer:
			end.say(wire.KindResponse, id, message.ObjectInfo{ID: "a", Server: "one"})
		case message.OpObjectWatch:
			end.say(wire.KindResponse, id, message.WatchingObjects{})
		}
	}
	pings(t, c, end)
	require.NoError(t, ref.Err())
}

func TestReconnectRefsConcurrently(t *testing.T) {
	drivertest.Leaks(t)
	o := newFakeOwner(t)
	c, end := o.connected("one")
	const refs = 32
	for n := range refs {
		end.hold(c, string(rune('a'+n)), "one", n == 0)
	}
	end.Close()
	end = o.greet("one")
	end.say(wire.KindResponse, end.asked(message.OpObjectWatch, nil), message.WatchingObjects{})
	asked := map[uint64]string{}
	for range refs { // before any is answered
		var in message.Object
		id := end.asked(message.OpObjectRefer, &in)
		asked[id] = in.ID
	}
	for id, object := range asked {
		end.say(wire.KindResponse, id, message.ObjectInfo{ID: object, Server: "one"})
	}
	pings(t, c, end)
}

func TestReconnectRefused(t *testing.T) {
	drivertest.Leaks(t)
	o := newFakeOwner(t)
	c, end := o.connected("one")
	w, _ := watching(t, c, end)
	ref := end.hold(c, "a", "one", true)
	end.Close()
	require.Equal(t, endpoint.EventOwnerLost, next(t, w).Kind)
	end = o.greet("one")
	for range 3 {
		id, _ := end.request()
		end.refuse(id, message.CodeResourceExhausted)
	}
	pings(t, c, end)
	<-ref.Done()
	require.ErrorIs(t, ref.Err(), endpoint.ErrStale)
	for {
		e, err := nextEvent(context.Background(), w)
		if err != nil {
			require.ErrorIs(t, err, endpoint.ErrLimit)
			break
		}
		require.Equal(t, endpoint.EventOwnerBack, e.Kind)
	}
}
