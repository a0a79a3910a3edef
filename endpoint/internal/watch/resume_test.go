package watch

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Resuming a watcher that was closed meanwhile is not an error of the connection.
func TestWatcherCloseAlone(t *testing.T) {
	w := &Watcher{of: New(connector.New(connector.Config{})), wake: make(chan struct{}, 1)}
	require.True(t, w.of.Add(w))
	jobs := w.of.Resume(new(link.Link))
	require.Len(t, jobs, 1)
	w.Close()
	require.NoError(t, jobs[0](t.Context()))
	require.False(t, w.of.Needed())
}

// If the connection resumes a watch that is being started, the caller waits for the owner's answer to that request.
func TestWatchWaitsForOwner(t *testing.T) {
	for name, answer := range map[string]func(owner *inproc.Pipe, request uint64) (want error){
		"begun": func(owner *inproc.Pipe, request uint64) error {
			require.NoError(t, owner.Send(wire.KindResponse, request, nil))
			return nil
		},
		"refused": func(owner *inproc.Pipe, request uint64) error {
			body, err := message.Marshal(message.Error{Code: message.CodeResourceExhausted, Message: "no"})
			require.NoError(t, err)
			require.NoError(t, owner.Send(wire.KindError, request, body))
			return status.ErrLimit
		},
		"cut": func(owner *inproc.Pipe, _ uint64) error {
			require.NoError(t, owner.Close())
			return status.ErrUnavailable
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				owners := make(chan *inproc.Pipe, 1)
				conn := connector.New(connector.Config{DialSelf: func() (*inproc.Pipe, message.Hello, error) {
					mine, theirs := inproc.New(wire.Limits{}, wire.Limits{})
					owners <- mine
					return theirs, message.Hello{Server: "one"}, nil
				}})
				defer conn.Close()
				watchers := New(conn)
				w := watchers.newWatcher([]string{"m"})
				require.True(t, watchers.Add(w))
				l, err := conn.ConnectNow(t.Context())
				require.NoError(t, err)
				owner := <-owners
				go w.Resume(context.Background(), l)
				request, err := owner.Receive()
				require.NoError(t, err)

				watched := make(chan error, 1)
				go func() { watched <- w.establish(t.Context(), l) }()
				synctest.Wait()
				require.Empty(t, watched, "before the owner has answered")
				want := answer(owner, request.ID)
				require.ErrorIs(t, <-watched, want)
				require.Equal(t, want != nil, w.NeedsResume(l))
			})
		})
	}
}
