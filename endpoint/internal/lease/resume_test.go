package lease

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A renewal that the owner refuses is requested once on each connection.
func TestRefusedRenewalNotRepeated(t *testing.T) {
	leases := New(connector.New(connector.Config{}), transfer.Importer{}, slog.New(slog.DiscardHandler))
	a := &Lease{of: leases, Name: "m", Version: 1, Server: "one", changed: make(chan struct{}), ready: true}
	require.True(t, leases.Add(a))
	for range 2 {
		owner, theirs := inproc.New(wire.Limits{}, wire.Limits{})
		l := link.NewPipe(theirs, message.Hello{Server: "one"})
		go l.Read()
		defer l.Cut()
		jobs := leases.Resume(l)
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
		require.Empty(t, leases.Resume(l))
	}
}
