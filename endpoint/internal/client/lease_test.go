package client

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// heldLease returns a lease of version 1 of the owner "one", which is held on conn.
func heldLease(t *testing.T, c *Client, conn *Conn) *Lease {
	a := &Lease{Name: "m", Version: 1, Server: "one", catalog: "one"}
	a.record = record{of: c.Connector, content: a}
	c.mu.Lock()
	defer c.mu.Unlock()
	require.True(t, c.addHeldLocked(&a.record, conn))
	return a
}

// A renewal that the owner refuses is requested once on each connection.
func TestRefusedRenewalNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		conn, err := c.ConnectNow(t.Context())
		require.NoError(t, err)
		w := owner.next()
		a := heldLease(t, c, conn)
		for range 2 {
			require.Equal(t, "one", a.Server)
			w.pipe.Close()
			w = owner.next()
			w.refuse(w.request(message.OpAcquire), message.CodeResourceExhausted)
			_, err := c.Connected(t.Context())
			require.NoError(t, err)
			require.False(t, a.Held())
			require.False(t, a.State().Orphaned)
			w.idle()
		}
		w.pipe.Close()
		w = owner.next()
		w.respond(w.request(message.OpAcquire), message.Acquired{Lease: 5, Version: 1})
		synctest.Wait()
		require.True(t, a.Held())
		require.True(t, a.Release())
		var in message.Release
		w.request(message.OpRelease, &in)
		require.Equal(t, []uint64{5}, in.Leases)
	})
}

// A lease that is released while its renewal is in flight is released at the owner when the answer arrives.
func TestLeaseReleasedDuringRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		conn, err := c.ConnectNow(t.Context())
		require.NoError(t, err)
		a := heldLease(t, c, conn)
		owner.next().pipe.Close()
		w := owner.next()
		request := w.request(message.OpAcquire)
		require.True(t, a.Release())
		w.respond(request, message.Acquired{Lease: 7, Version: 1})
		var in message.Release
		w.request(message.OpRelease, &in)
		require.Equal(t, []uint64{7}, in.Leases)
		require.Empty(t, All[*Lease](c.Connector))
	})
}

// Events change the state of a version, also if they arrive before the answer with the version.
func TestLeaseStates(t *testing.T) {
	t.Parallel()
	near, _, err := wire.Pipe(wire.Limits{})
	require.NoError(t, err)
	defer near.Close()
	conn, earlier := newConn(near, message.Hello{Server: "one"}), new(Conn)
	c := newClient()
	a := &Lease{Name: "m"}
	a.record = record{of: c.Connector, content: a}
	event := a.acquireLocked(conn, message.Acquire{Name: "m"}).Event
	event(message.Event{Kind: message.EventPublished, Name: "m", Version: 5})
	a.Version, a.catalog = 3, "one"
	require.True(t, c.addHeldLocked(&a.record, conn))
	require.Equal(t, LeaseState{Newest: 5}, a.State())
	for _, step := range []struct {
		conn    *Conn
		kind    message.EventKind
		version uint64
		want    LeaseState
	}{
		{conn, message.EventPublished, 4, LeaseState{Newest: 5}},
		{earlier, message.EventPublished, 9, LeaseState{Newest: 5}}, // of another connection
		{conn, message.EventWithdrawn, 2, LeaseState{Newest: 5}},    // of an earlier version
		{conn, message.EventWithdrawn, 5, LeaseState{Newest: 5, Withdrawn: true}},
		{conn, message.EventPublished, 6, LeaseState{Newest: 6, Withdrawn: true}},
	} {
		before, changed := a.State(), a.Changed()
		a.event(step.conn, message.Event{Kind: step.kind, Name: "m", Version: step.version})
		require.Equal(t, step.want, a.State())
		select {
		case <-changed:
			require.NotEqual(t, before, step.want)
		default:
			require.Equal(t, before, step.want)
		}
	}
	_, err = a.askLocked(newConn(near, message.Hello{Server: "two"}))
	a.refused(err)
	a.event(conn, message.Event{Kind: message.EventPublished, Name: "m", Version: 7})
	require.Equal(t, LeaseState{Newest: 6, Withdrawn: true, Orphaned: true}, a.State())
	require.NotEmpty(t, All[*Lease](c.Connector), "an orphaned lease is open until it is released")
	changed := a.Changed()
	a.held = false // there is no owner
	require.True(t, a.Release())
	require.False(t, a.Release(), "the second time")
	<-changed
	<-a.Changed()
	require.Empty(t, All[*Lease](c.Connector))
}
