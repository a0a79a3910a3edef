package watch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
)

// TestWatcherCloseAlone takes up a watcher on a new connection that was closed meanwhile: that is no error of the
// connection. (D38)
func TestWatcherCloseAlone(t *testing.T) {
	w := &Watcher{of: New(connector.New(connector.Config{})), wake: make(chan struct{}, 1)}
	require.True(t, w.of.Add(w))
	jobs := w.of.Resume(new(link.Link))
	require.Len(t, jobs, 1)
	w.Close()
	require.NoError(t, jobs[0](t.Context()))
	require.False(t, w.of.Needed())
}
