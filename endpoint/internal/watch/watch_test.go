package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
	w := aloneWatcher()
	for i := range 3 * maxWatched {
		name := fmt.Sprint("model ", i)
		w.hear(message.EventPublished, name, 1)
		w.hear(message.EventPublished, name, 1)
		w.hear(message.EventWithdrawn, name, 1)
		e, err := w.next(context.Background())
		require.NoError(t, err)
		require.Equal(t, Event{Kind: Withdrawn, Name: name, Version: 1, Server: "one"}, e)
	}
	require.Empty(t, w.seen)
	require.Empty(t, w.pending)
	require.Empty(t, w.queue)
}

func TestWatcherOverflow(t *testing.T) {
	w := aloneWatcher()
	w.putLocked(ownerKey, Event{Kind: OwnerBack})
	for i := range 3*maxWatched - 7 {
		w.hear(message.EventPublished, fmt.Sprint("model ", i), 1)
		require.LessOrEqual(t, len(w.pending), maxWatched+1)
		require.LessOrEqual(t, len(w.seen), maxWatched)
		require.Len(t, w.queue, len(w.pending))
	}
	kinds := map[Kind]int{}
	var order []Kind
	for len(w.queue) > 0 {
		e, err := w.next(context.Background())
		require.NoError(t, err)
		if kinds[e.Kind]++; kinds[e.Kind] == 1 {
			order = append(order, e.Kind)
		}
	}
	require.Equal(t, []Kind{OwnerBack, Overflow, Published}, order)
	require.Equal(t, 1, kinds[Overflow])
	w.hear(message.EventPublished, "one more", 1)
	e, err := w.next(context.Background())
	require.NoError(t, err)
	require.Equal(t, "one more", e.Name)
}

func TestEventsContinueAfterLoop(t *testing.T) {
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
