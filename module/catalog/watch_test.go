package catalog_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// ev returns an event.
func ev(seq uint64, kind catalog.EventKind, name string, version uint64) catalog.Event {
	return catalog.Event{Seq: seq, Kind: kind, Name: name, Version: version}
}

func TestWatcherCoalescesPerName(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	w := b.Subscribe(nil, nil)
	b.publish("a")
	b.publish("b")
	b.publish("a")
	require.Equal(t, []catalog.Event{ev(2, catalog.Published, "b", 1), ev(3, catalog.Published, "a", 2)}, w.Next())
	require.Empty(t, w.Next(), "Next takes them")

	b.publish("a")
	require.NoError(t, b.Withdraw("a"))
	require.Equal(t, []catalog.Event{ev(5, catalog.Withdrawn, "a", 3)}, w.Next(),
		"a publication that was withdrawn is not news")

	b.publish("a")
	require.NoError(t, b.Withdraw("a"))
	b.publish("a")
	b.publish("a")
	require.Equal(t, []catalog.Event{ev(7, catalog.Withdrawn, "a", 4), ev(9, catalog.Published, "a", 6)}, w.Next(),
		"the withdrawal is kept")
	w.Close()
}

func TestWatcherOfNames(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	some := b.Subscribe([]string{"a", "not yet", "a"}, nil)
	none := b.Subscribe([]string{}, nil)
	require.Equal(t, 1, b.Stats().Watchers, "a watcher of no names watches nothing")
	b.publish("a")
	b.publish("b")
	b.publish("not yet")
	require.Equal(t, []catalog.Event{ev(1, catalog.Published, "a", 1), ev(3, catalog.Published, "not yet", 1)}, some.Next())
	require.Empty(t, none.Next())

	some.Close()
	some.Close()
	none.Close()
	b.publish("a")
	require.Empty(t, some.Next(), "closed")
	require.Zero(t, b.Stats().Watchers)
}

func TestWakeIsCalledOutsideTheLockAndOnceUntilNext(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	woken := 0
	w := b.Subscribe(nil, func() {
		woken++
		b.List() // would deadlock with the lock held
	})
	defer w.Close()
	b.publish("a")
	b.publish("b")
	require.NoError(t, b.Withdraw("a"))
	require.Equal(t, 1, woken)
	require.Len(t, w.Next(), 2)
	b.publish("a")
	require.Equal(t, 2, woken)
}

func TestWakeMayTakeTheEvents(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	var got []catalog.Event
	var w *catalog.Watcher
	w = b.Subscribe(nil, func() { got = append(got, w.Next()...) })
	defer w.Close()
	for range 3 {
		b.publish("a")
	}
	require.Len(t, got, 3)
}

func TestSlowWatcherHoldsABoundedNumberOfEvents(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{PendingNames: 10})
	w := b.Subscribe(nil, nil)
	defer w.Close()
	for i := range 1000 {
		b.publish(fmt.Sprintf("model %d", i%10))
	}
	require.Len(t, w.Next(), 10, "as many as there are names")

	for i := range 105 {
		b.publish(fmt.Sprintf("new %d", i))
	}
	events := w.Next()
	require.Equal(t, catalog.Overflow, events[0].Kind)
	require.LessOrEqual(t, len(events), 11)
	require.Equal(t, uint64(1105), events[len(events)-1].Seq, "what came after the overflow is kept")
	for i := 1; i < len(events); i++ {
		require.Greater(t, events[i].Seq, events[i-1].Seq)
	}
	b.publish("after")
	require.Equal(t, []catalog.Event{ev(1106, catalog.Published, "after", 1)}, w.Next())
}

func TestEventKindString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "published withdrawn overflow unknown",
		fmt.Sprint(catalog.Published, catalog.Withdrawn, catalog.Overflow, catalog.EventKind(0)))
}
