package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A renewal that the owner refuses is requested once on each connection.
func TestRefusedRenewalNotRepeated(t *testing.T) {
	t.Parallel()
	c := newClient()
	a := &Lease{of: c.Connector, Name: "m", Version: 1, Server: "one", catalog: "one", changed: make(chan struct{}), ready: true}
	require.True(t, c.add(a))
	for range 2 {
		owner, theirs := transport.NewPipe(wire.Limits{}, wire.Limits{})
		conn := newPipe(theirs, message.Hello{Server: "one"})
		go conn.read()
		defer conn.cut()
		jobs := c.toResume(conn, false)
		require.Len(t, jobs, 1)
		done := make(chan error, 1)
		go func() { done <- jobs[0](t.Context()) }()
		request, err := owner.Receive()
		require.NoError(t, err)
		body, err := message.Marshal(message.Error{Code: message.CodeResourceExhausted, Message: "no"})
		require.NoError(t, err)
		require.NoError(t, owner.Send(wire.KindError, request.ID, body))
		require.NoError(t, <-done)
		require.False(t, a.Held())
		require.Empty(t, c.toResume(conn, false))
	}
}

// Events change the state of a version, also if they arrive before the answer with the version.
func TestLeaseStates(t *testing.T) {
	t.Parallel()
	a := &Lease{of: newClient().Connector, Name: "m", changed: make(chan struct{})}
	conn := new(Conn)
	event := a.eventsOf(conn)
	event(message.Event{Kind: message.EventPublished, Name: "m", Version: 5})
	a.acquired(&message.Hello{Server: "one"}, 3)
	require.Equal(t, LeaseState{Newest: 5}, a.State())
	for _, step := range []struct {
		conn    *Conn
		kind    message.EventKind
		version uint64
		want    LeaseState
	}{
		{conn, message.EventPublished, 4, LeaseState{Newest: 5}},
		{new(Conn), message.EventPublished, 9, LeaseState{Newest: 5}}, // of another connection
		{conn, message.EventWithdrawn, 2, LeaseState{Newest: 5}},      // of an earlier version
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
	a.end()
	a.event(conn, message.Event{Kind: message.EventPublished, Name: "m", Version: 7})
	require.Equal(t, LeaseState{Newest: 6, Withdrawn: true, Orphaned: true}, a.State())
	require.True(t, a.Release())
	require.False(t, a.Release(), "the second time")
}
