package client

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// subscribed receives the subscription to destroyed objects and returns its id.
func (w *fakeOwner) subscribed() uint64 {
	w.t.Helper()
	id := w.NextRequest(message.OpObjectWatch, nil)
	w.SendFrame(wire.KindResponse, id, message.WatchingObjects{})
	return id
}

// kept returns a reference with the token 1 that a client has on the connection, and the id of the subscription.
func (w *fakeOwner) kept(c *Client) (ref *Reference, events uint64) {
	w.t.Helper()
	done := fetch(w.t.Context(), c, Call{Name: "f", Keep: true})
	events = w.subscribed()
	w.SendFrame(wire.KindResponse, w.NextRequest(message.OpCall, nil), returned(7, 1))
	got := <-done
	require.NoError(w.t, got.err)
	require.Equal(w.t, 7, got.value)
	require.NoError(w.t, got.ref.Err())
	return got.ref, events
}

// staleFor checks that a reference has ended because of the reason.
func staleFor(t *testing.T, ref *Reference, reason string) *status.StaleError {
	t.Helper()
	within(t, "the end of the reference", ref.Done())
	var stale *status.StaleError
	require.ErrorAs(t, ref.Err(), &stale)
	require.Equal(t, reason, stale.Reason)
	require.Equal(t, "object", stale.ObjectID)
	require.Empty(t, All[*Reference](ref.of))
	require.Empty(t, ref.of.objects)
	return stale
}

func TestReferenceReleased(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ref, _ := w.kept(c)
	released := make(chan bool, 1)
	go func() {
		took, err := ref.Release(t.Context(), true)
		released <- took && err == nil
	}()
	require.EqualValues(t, 1, w.releasedOne())
	require.True(t, <-released)
	require.ErrorIs(t, ref.Err(), status.ErrClosed)
	took, err := ref.Release(t.Context(), true)
	require.NoError(t, err)
	require.False(t, took, "the second time")
	require.Empty(t, All[*Reference](c.Connector))
	w.pings()
}

// A caller that leaves before the answer still releases the reference.
func TestReferenceReleaseCancelled(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ref, _ := w.kept(c)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ref.Release(ctx, true)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, w.releasedOne())
}

// An event ends the references to the destroyed object, also if it arrives before the answer with the reference.
func TestReferenceToDestroyedObject(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ref, events := w.kept(c)
	w.SendFrame(wire.KindEvent, events, message.ObjectGone{ID: "other"})
	w.SendFrame(wire.KindEvent, events, message.ObjectGone{ID: "object", Reason: "destroyed by process 1"})
	require.Equal(t, "destroyed by process 1", staleFor(t, ref, status.StaleObjectMissing).Detail)

	done := fetch(t.Context(), c, Call{Name: "f", Keep: true})
	id := w.NextRequest(message.OpCall, nil)
	w.SendFrame(wire.KindEvent, events, message.ObjectGone{ID: "object"})
	w.SendFrame(wire.KindResponse, id, returned(7, 2))
	got := <-done
	require.NoError(t, got.err)
	staleFor(t, got.ref, status.StaleObjectMissing)
}

// A reference is acquired again on the next connection to the same server.
func TestReferenceResumed(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ref, _ := w.kept(c)
	w.Close()
	within(t, "the end of the connection", w.conn.Done)
	next := acceptedOwner(t)
	used := next.begin(c)
	events := next.subscribed()
	var in message.Object
	id := next.NextRequest(message.OpObjectRefer, &in)
	require.Equal(t, "object", in.ID)
	next.SendFrame(wire.KindResponse, id, message.ObjectInfo{ID: "object", Token: 5})
	within(t, "the reference is acquired again", used)
	require.NoError(t, ref.Err())

	next.SendFrame(wire.KindEvent, events, message.ObjectGone{ID: "other"})
	go func() { _, _ = ref.Release(context.Background(), false) }()
	require.EqualValues(t, 5, next.releasedOne())
}

// A reference ends if the next server is another one, or does not have the object.
func TestReferenceNotResumed(t *testing.T) {
	drivertest.Leaks(t)
	t.Run("another server", func(t *testing.T) {
		c, w := session(t)
		ref, _ := w.kept(c)
		w.Close()
		within(t, "the end of the connection", w.conn.Done)
		acceptedBy(t, "two").use(c)
		staleFor(t, ref, status.StaleServerMismatch)
	})
	t.Run("no such object", func(t *testing.T) {
		c, w := session(t)
		ref, _ := w.kept(c)
		w.Close()
		within(t, "the end of the connection", w.conn.Done)
		next := acceptedOwner(t)
		next.begin(c)
		next.subscribed()
		next.SendFrame(wire.KindError, next.NextRequest(message.OpObjectRefer, nil), message.Error{Code: message.CodeStaleHandle, Message: "gone"})
		staleFor(t, ref, status.StaleObjectMissing)
	})
}

// The objects of an owner that is shutting down are gone.
func TestReferenceOwnerLeaves(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ref, _ := w.kept(c)
	require.NoError(t, w.Send(wire.KindGoodbye, 0, nil))
	staleFor(t, ref, status.StaleObjectMissing)
}

// The end of the connection releases the reference. The end of the client ends it.
func TestReferenceConnectionLost(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	ref, _ := w.kept(c)
	w.Close()
	within(t, "the end of the connection", w.conn.Done)
	require.NoError(t, ref.Err(), "it can be acquired again")
	c.Close()
	require.ErrorIs(t, ref.Err(), status.ErrClosed)
	took, err := ref.Release(t.Context(), true)
	require.NoError(t, err)
	require.False(t, took)
	require.ErrorIs(t, c.keep(w.conn, &message.ObjectRef{ID: "object", Server: "one", Token: 1}).Err(), status.ErrClosed)
}

// A reference that is released before it was requested again sends no request.
func TestReferenceReleasedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		first, err := c.ConnectNow(t.Context())
		require.NoError(t, err)
		r := c.keep(first, &message.ObjectRef{ID: "object", Server: "one", Token: 1})
		owner.stop()
		owner.next().pipe.Close()
		synctest.Wait()
		took, err := r.Release(t.Context(), true)
		require.NoError(t, err)
		require.False(t, took, "the end of the connection released it")
		require.ErrorIs(t, r.Err(), errReleased)
		owner.start()
		_, err = c.Connected(t.Context())
		require.NoError(t, err)
		owner.next().idle()
		require.Empty(t, All[*Reference](c.Connector))
		require.Empty(t, c.objects)
	})
}

// A reference that is released while it is requested again is released at the owner when the answer arrives.
func TestReferenceReleasedDuringRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		conn, err := c.ConnectNow(t.Context())
		require.NoError(t, err)
		r := c.keep(conn, &message.ObjectRef{ID: "object", Server: "one", Token: 1})
		owner.next().pipe.Close()
		w := owner.next()
		w.respond(w.request(message.OpObjectWatch))
		request := w.request(message.OpObjectRefer)
		took, err := r.Release(t.Context(), true)
		require.NoError(t, err)
		require.False(t, took)
		w.respond(request, message.ObjectInfo{ID: "object", Token: 6})
		var in message.ReleaseObjects
		w.request(message.OpObjectRelease, &in)
		require.Equal(t, []uint64{6}, in.Tokens)
	})
}
