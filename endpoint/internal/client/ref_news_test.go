package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// holding starts a call whose reference is kept.
func holding(c *endpoint.Client) <-chan *endpoint.Ref[int] {
	held := make(chan *endpoint.Ref[int], 1)
	go func() {
		ref, _ := endpoint.CallManaged[int](context.Background(), c, "object", 1)
		held <- ref
	}()
	return held
}

func returned(id, server string) message.Returned {
	return message.Returned{Value: message.RawMessage{1}, Object: &message.ObjectRef{ID: id, Server: server}}
}

// together sends two frames in one write, so that they are received together.
func together(e *fixture.OwnerEnd, kind wire.Kind, id uint64, body any, kind2 wire.Kind, id2 uint64, body2 any) {
	e.T.Helper()
	encoded, err := message.MarshalPayload(body)
	require.NoError(e.T, err)
	require.NoError(e.T, e.SendLater(kind, id, encoded))
	e.SendFrame(kind2, id2, body2)
}

func TestRefStaleAtOnce(t *testing.T) {
	drivertest.Leaks(t)
	for range 20 {
		o := fixture.NewFakeOwner(t)
		c, end := o.Connected("one")
		held := holding(c)
		watch := end.NextRequest(message.OpObjectWatch, nil)
		call := end.NextRequest(message.OpCall, nil)
		together(end, wire.KindResponse, watch, message.WatchingObjects{}, wire.KindResponse, call, returned("a", "one"))
		ref := <-held
		require.NotNil(t, ref)
		end.Close()
		again := o.Greet("one")
		watch = again.NextRequest(message.OpObjectWatch, nil)
		refer := again.NextRequest(message.OpObjectRefer, nil)
		together(again, wire.KindResponse, refer, message.ObjectInfo{ID: "a", Server: "one"}, wire.KindEvent, watch, message.ObjectGone{ID: "a"})
		select {
		case <-ref.Done():
		case <-fixture.Timeout():
			require.Fail(t, "the reference seems good")
		}
		require.ErrorIs(t, ref.Err(), endpoint.ErrStale)
		require.NoError(t, ref.Close())
		require.NoError(t, c.Close())
	}
}

func TestRefEventsBeforeFirstObject(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	for range 200 {
		c, end := o.Connected("one")
		var calls sync.WaitGroup
		for range 32 {
			calls.Go(func() {
				endpoint.CallManaged[int](context.Background(), c, "object", 1) // ends with the client
			})
		}
		end.NextRequest(message.OpObjectWatch, nil)
		require.NoError(t, c.Close())
		calls.Wait()
	}
}

func TestRefStaleOfOneObject(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	var refs []*endpoint.Ref[int]
	var watch uint64
	for n := range 6 { // two for each of three objects
		held := holding(c)
		if n == 0 {
			watch = end.NextRequest(message.OpObjectWatch, nil)
			end.SendFrame(wire.KindResponse, watch, message.WatchingObjects{})
		}
		end.SendFrame(wire.KindResponse, end.NextRequest(message.OpCall, nil), returned(fmt.Sprint("object", n/2), "one"))
		ref := <-held
		require.NotNil(t, ref)
		refs = append(refs, ref)
	}
	require.NoError(t, refs[4].Close())
	end.NextRequest(message.OpObjectRelease, nil)
	for _, gone := range []string{"object1", "object2", "nothing"} {
		end.SendFrame(wire.KindEvent, watch, message.ObjectGone{ID: gone})
	}
	for n, ref := range refs[2:] {
		select {
		case <-ref.Done():
		case <-fixture.Timeout():
			require.Fail(t, "the reference seems good", n)
		}
	}
	require.ErrorIs(t, refs[3].Err(), endpoint.ErrStale)
	require.ErrorIs(t, refs[4].Err(), endpoint.ErrClosed)
	require.NoError(t, refs[0].Err())
	require.NoError(t, refs[1].Err())
}
