package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A renewal that the owner refuses is requested once on each connection.
func TestRefusedRenewalNotRepeated(t *testing.T) {
	c := newClient()
	a := &Lease{of: c.Connector, Name: "m", Version: 1, Server: "one", changed: make(chan struct{}), ready: true}
	require.True(t, c.add(a))
	for range 2 {
		owner, theirs := inproc.New(wire.Limits{}, wire.Limits{})
		conn := newPipe(theirs, message.Hello{Server: "one"})
		go conn.read()
		defer conn.cut()
		jobs := c.toResume(conn)
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
		require.Empty(t, c.toResume(conn))
	}
}
