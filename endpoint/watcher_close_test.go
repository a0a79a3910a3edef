package endpoint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// TestWatcherCloseAlone takes up a watcher on a new connection that was closed meanwhile: that is no error of the
// connection. (D38)
func TestWatcherCloseAlone(t *testing.T) {
	s, err := newOwner(ServerOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.ErrorIs(t, s.Call(context.Background(), "nothing", nil, nil), status.ErrNoEndpoint) // connects
	l := s.own.current()
	w := &Watcher{held: &s.own.holdings, wake: make(chan struct{}, 1), err: status.ErrClosed}
	require.NoError(t, s.own.resumeWatcher(context.Background(), l, w))
	r := &reference{of: &s.own.holdings, done: make(chan struct{}), err: errReleased, server: s.id}
	require.NoError(t, s.own.resumeReference(context.Background(), l, r))
	require.NoError(t, l.Reason())
}
