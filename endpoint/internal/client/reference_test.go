package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Resuming a reference that was released meanwhile sends no request and is not an error of the connection.
func TestReferenceReleasedAlone(t *testing.T) {
	c := newClient()
	r := c.references.keep(new(Conn), &message.ObjectRef{ID: "object", Server: "server", Token: 1})
	next := new(Conn)
	next.Server.Server = r.Server
	jobs := c.toResume(next)
	require.Len(t, jobs, 1)
	took, err := r.Release(t.Context(), true)
	require.NoError(t, err)
	require.False(t, took, "the end of the connection released it")
	require.ErrorIs(t, r.Err(), errReleased)
	require.NoError(t, jobs[0](t.Context()))
	require.Empty(t, All[*Reference](c.Connector))
}
