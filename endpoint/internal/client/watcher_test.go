package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// aloneWatcher returns a watcher without a client or connection.
func aloneWatcher() *Watcher {
	return &Watcher{wake: make(chan struct{}, 1), seen: map[string]uint64{}, pending: map[string]Event{}, server: "one"}
}

func (w *Watcher) hear(kind message.EventKind, name string, version uint64) {
	w.event(nil, message.Event{Kind: kind, Name: name, Version: version})
}

func TestWatcherForgetsNames(t *testing.T) {
	t.Parallel()
	w := aloneWatcher()
	for i := range 3 * maxWatched {
		name := fmt.Sprint("model ", i)
		w.hear(message.EventPublished, name, 1)
		w.hear(message.EventPublished, name, 1)
		w.hear(message.EventWithdrawn, name, 1)
		e, err := w.next(context.Background())
		require.NoError(t, err)
		require.Equal(t, Event{Withdrawn: true, Name: name, Version: 1, Server: "one"}, e)
	}
	require.Empty(t, w.seen)
	require.Empty(t, w.pending)
	require.Empty(t, w.queue)
}

func TestWatcherOverflow(t *testing.T) {
	t.Parallel()
	w := aloneWatcher()
	w.putLocked(ownerKey, Event{OwnerBack: true})
	for i := range 3*maxWatched - 7 {
		w.hear(message.EventPublished, fmt.Sprint("model ", i), 1)
		require.LessOrEqual(t, len(w.pending), maxWatched+1)
		require.LessOrEqual(t, len(w.seen), maxWatched)
		require.Len(t, w.queue, len(w.pending))
	}
	names := 0
	var order []Event
	for len(w.queue) > 0 {
		e, err := w.next(context.Background())
		require.NoError(t, err)
		if e.Name == "" {
			order = append(order, e)
			require.Zero(t, names, "events of the owner and overflows are first")
		} else {
			names++
		}
	}
	require.Equal(t, []Event{{OwnerBack: true}, {Overflow: true, Server: "one"}}, order)
	require.Positive(t, names)
	w.hear(message.EventPublished, "one more", 1)
	e, err := w.next(context.Background())
	require.NoError(t, err)
	require.Equal(t, "one more", e.Name)
}

func TestEventsContinueAfterLoop(t *testing.T) {
	t.Parallel()
	w := aloneWatcher()
	for _, name := range []string{"a", "b", "c"} {
		w.hear(message.EventPublished, name, 1)
	}
	var names []string
	for range 2 {
		for e, err := range w.Events(t.Context()) {
			require.NoError(t, err)
			names = append(names, e.Name)
			break
		}
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	for e, err := range w.Events(ended) {
		if err != nil {
			require.ErrorIs(t, err, errEnough)
			break
		}
		names = append(names, e.Name)
	}
	require.Equal(t, []string{"a", "b", "c"}, names, "each once, including events before the end of the context")
}

var errEnough = errors.New("enough")

// Resuming a watcher that was closed meanwhile is not an error of the connection.
func TestWatcherCloseAlone(t *testing.T) {
	t.Parallel()
	w := &Watcher{of: newClient().Connector, wake: make(chan struct{}, 1)}
	require.True(t, w.of.add(w))
	jobs := w.of.toResume(new(Conn), false)
	require.Len(t, jobs, 1)
	w.Close()
	require.NoError(t, jobs[0](t.Context()))
	require.Empty(t, All[*Watcher](w.of))
}

// If the connection resumes a watch that is being started, the caller waits for the owner's answer to that request.
func TestWatchWaitsForOwner(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(owner *transport.Pipe, request uint64) (want error){
		"begun": func(owner *transport.Pipe, request uint64) error {
			require.NoError(t, owner.Send(wire.KindResponse, request, nil))
			return nil
		},
		"refused": func(owner *transport.Pipe, request uint64) error {
			body, err := message.Marshal(message.Error{Code: message.CodeResourceExhausted, Message: "no"})
			require.NoError(t, err)
			require.NoError(t, owner.Send(wire.KindError, request, body))
			return status.ErrLimit
		},
		"cut": func(owner *transport.Pipe, _ uint64) error {
			require.NoError(t, owner.Close())
			return status.ErrUnavailable
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				owners := make(chan *transport.Pipe, 1)
				c := New(Config{DialSelf: func() (*transport.Pipe, message.Hello, error) {
					mine, theirs := transport.NewPipe(wire.Limits{}, wire.Limits{})
					owners <- mine
					return theirs, message.Hello{Server: "one"}, nil
				}})
				defer c.Close()
				w := c.newWatcher([]string{"m"})
				conn, err := c.ConnectNow(t.Context())
				require.NoError(t, err)
				owner := <-owners
				go w.resume(context.Background(), conn)
				request, err := owner.Receive()
				require.NoError(t, err)

				watched := make(chan error, 1)
				go func() { watched <- w.establish(t.Context(), conn) }()
				synctest.Wait()
				require.Empty(t, watched, "before the owner has answered")
				want := answer(owner, request.ID)
				require.ErrorIs(t, <-watched, want)
				require.Equal(t, want != nil, w.needsResume(conn))
			})
		})
	}
}
