package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// aloneWatcher returns a watcher without a connection.
func aloneWatcher() *Watcher {
	w := newClient().newWatcher(nil)
	w.server = "one"
	return w
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

// A watch whose first answer is in flight waits for it, and ends with a refusal or the connection.
func TestWatchWaitsForOwner(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(owner *pipeEnd, request uint64) (want error){
		"begun": func(owner *pipeEnd, request uint64) error {
			owner.respond(request)
			return nil
		},
		"refused": func(owner *pipeEnd, request uint64) error {
			owner.refuse(request, message.CodeResourceExhausted)
			return status.ErrLimit
		},
		"cut": func(owner *pipeEnd, _ uint64) error {
			owner.pipe.Close()
			return status.ErrUnavailable
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				owner := newPipeOwner()
				c := owner.client()
				defer c.Close()
				w := c.newWatcher([]string{"m"})
				conn, err := c.ConnectNow(t.Context())
				require.NoError(t, err)
				end := owner.next()
				require.True(t, c.add(&w.record))
				request := end.request(message.OpWatch)
				watched := make(chan error, 1)
				go func() { watched <- c.await(t.Context(), conn, &w.record) }()
				synctest.Wait()
				require.Empty(t, watched, "before the owner has answered")
				want := answer(end, request)
				require.ErrorIs(t, <-watched, want)
			})
		})
	}
}

// A caller that leaves before the answer cancels its request and ends the watch at the owner.
func TestWatchAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		watched := make(chan error, 1)
		_, err := c.ConnectNow(ctx)
		require.NoError(t, err)
		go func() { _, err := c.Watch(ctx, false); watched <- err }()
		w := owner.next()
		request := w.request(message.OpWatch)
		cancel(errEnough)
		require.ErrorIs(t, <-watched, errEnough)
		frame, err := w.pipe.Receive()
		require.NoError(t, err)
		require.Equal(t, wire.KindCancel, frame.Kind)
		require.Equal(t, request, frame.ID)
		w.respond(request)
		var in message.Unwatch
		w.request(message.OpUnwatch, &in)
		require.Equal(t, request, in.Watch)
		require.Empty(t, All[*Watcher](c.Connector))
	})
}

// After a reconnection to the same owner, a watcher compares its versions with the list, whose parts it requests one after
// the other. It reports the names that are missing. A list that the owner cannot give is requested again.
func TestWatcherListsWithdrawnNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		watched := make(chan *Watcher, 1)
		go func() {
			w, err := c.Watch(t.Context(), false)
			require.NoError(t, err)
			watched <- w
		}()
		end := owner.next()
		request := end.request(message.OpWatch)
		end.respond(request)
		w := <-watched
		for _, name := range []string{"a", "b", "c"} {
			end.event(request, message.Event{Kind: message.EventPublished, Name: name, Version: 3})
		}
		synctest.Wait()
		end.pipe.Close()
		end = owner.next()
		request = end.request(message.OpWatch)
		end.respond(request)
		end.event(request, message.Event{Kind: message.EventPublished, Name: "c", Version: 4})
		end.refuse(end.request(message.OpList), message.CodeUnavailable)
		var ask message.List
		first := end.request(message.OpList, &ask)
		require.Empty(t, ask)
		end.respond(first, message.Listed{Models: []message.ModelInfo{{Name: "a"}}, Next: "a"})
		end.respond(end.request(message.OpList, &ask), message.Listed{Models: []message.ModelInfo{{Name: "b", Withdrawn: true}}})
		require.Equal(t, "a", ask.After)
		var got []Event
		for e, err := range w.Events(t.Context()) {
			require.NoError(t, err)
			if got = append(got, e); e.Withdrawn {
				break
			}
		}
		require.Equal(t, Event{Withdrawn: true, Name: "b", Version: 3, Server: "one"}, got[len(got)-1])
		require.Contains(t, got, Event{Name: "c", Version: 4, Server: "one"})
		require.NoError(t, c.Current().reason())
	})
}

// A watch whose client or connection ends before the owner answers fails with the reason.
func TestWatchEndsBeforeItsAnswer(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *Client, w *fakeOwner, leave context.CancelFunc){
		"client closed":    func(c *Client, _ *fakeOwner, _ context.CancelFunc) { c.Close() },
		"connection ended": func(_ *Client, w *fakeOwner, _ context.CancelFunc) { w.conn.cut() },
		"caller left":      func(_ *Client, _ *fakeOwner, leave context.CancelFunc) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, w := session(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			failed := make(chan error, 1)
			go func() {
				_, err := c.Watch(ctx, false, "m")
				failed <- err
			}()
			w.NextRequest(message.OpWatch, nil)
			end(c, w, leave)
			select {
			case err := <-failed:
				require.Error(t, err)
			case <-time.After(waitLimit):
				require.Fail(t, "the watch waits")
			}
		})
	}
}

// A caller that leaves after its client was closed cancels nothing.
func TestAbandonAfterClose(t *testing.T) {
	t.Parallel()
	c, w := session(t)
	watcher := c.newWatcher([]string{"m"})
	require.True(t, c.add(&watcher.record))
	w.NextRequest(message.OpWatch, nil)
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return watcher.sentID != 0 }, waitLimit, time.Millisecond)
	c.Close()
	c.abandon(&watcher.record, context.Canceled)
	require.ErrorIs(t, watcher.ended, status.ErrClosed)
}
