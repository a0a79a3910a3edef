package endpoint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TestAnswerBeforeAbandonKeepsEvents has the answer to a watch come before its context is seen to have ended: the request has succeeded, so its
// events go on. (D37)
func TestAnswerBeforeAbandonKeepsEvents(t *testing.T) {
	near, _ := inproc.New(wire.Limits{}, wire.Limits{})
	l := makeLink(near, message.Hello{})
	heard := 0
	watch := call{op: message.OpWatch, item: func(wire.Frame) error { heard++; return nil }}
	id, w, err := l.expect(&watch)
	require.NoError(t, err)
	require.NoError(t, l.dispatch(wire.Frame{Kind: wire.KindResponse, ID: id}))
	require.False(t, l.abandon(id, w), "the answer is there")
	require.NoError(t, l.dispatch(wire.Frame{Kind: wire.KindEvent, ID: id}))
	require.Equal(t, 1, heard)

	id, w, err = l.expect(&watch)
	require.NoError(t, err)
	require.True(t, l.abandon(id, w))
	require.NoError(t, l.dispatch(wire.Frame{Kind: wire.KindEvent, ID: id}))
	require.Equal(t, 1, heard, "nobody waits for it any more")
}

// TestClosedWatcherEndsAlone takes up a watcher on a new connection that was closed meanwhile: that is no error of the connection. (D38)
func TestClosedWatcherEndsAlone(t *testing.T) {
	s, err := newOwner(ServerOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.ErrorIs(t, s.Call(context.Background(), "nothing", nil, nil), status.ErrNoEndpoint) // connects
	l := s.own.link
	w := &Watcher{client: s.own, wake: make(chan struct{}, 1), err: status.ErrClosed}
	require.NoError(t, s.own.resumeWatcher(context.Background(), l, w))
	r := &reference{client: s.own, done: make(chan struct{}), err: errReleased, server: s.id}
	require.NoError(t, s.own.resumeReference(context.Background(), l, r))
	require.NoError(t, l.reason())
}
