package reference

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Resuming a reference that was released meanwhile sends no request and is not an error of the connection.
func TestReferenceReleasedAlone(t *testing.T) {
	table := New(connector.New(connector.Config{}), slog.New(slog.DiscardHandler))
	r := table.Keep(new(link.Link), &message.ObjectRef{ID: "object", Server: "server", Token: 1})
	next := new(link.Link)
	next.Server.Server = r.Server
	jobs := table.Resume(next)
	require.Len(t, jobs, 1)
	took, err := r.Release(t.Context(), true)
	require.NoError(t, err)
	require.False(t, took, "the end of the connection released it")
	require.ErrorIs(t, r.Err(), ErrReleased)
	require.NoError(t, jobs[0](t.Context()))
	require.False(t, table.Needed())
}
