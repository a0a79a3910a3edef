package endpoint

import (
	"context"
	"fmt"
	"iter"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/watch"
)

// EventKind says what an [Event] is about.
type EventKind uint8

const (
	// EventPublished is a version that has become the newest of its name, or, when a watch begins or an owner comes
	// back, is it.
	EventPublished = EventKind(watch.Published)
	// EventWithdrawn is a name that cannot be acquired any more.
	EventWithdrawn = EventKind(watch.Withdrawn)
	// EventOwnerLost is the connection to the owner that ended, or its owner that said it is leaving. The client dials
	// again by itself.
	EventOwnerLost = EventKind(watch.OwnerLost)
	// EventOwnerBack is the connection to an owner, the same or another, that was made again.
	EventOwnerBack = EventKind(watch.OwnerBack)
	// EventOverflow comes where so many names changed since the last event that what was known of them was dropped:
	// ask for the list.
	EventOverflow = EventKind(watch.Overflow)
)

// String is the kind in one or two words.
func (k EventKind) String() string {
	switch k {
	case EventPublished:
		return "published"
	case EventWithdrawn:
		return "withdrawn"
	case EventOwnerLost:
		return "owner lost"
	case EventOwnerBack:
		return "owner back"
	case EventOverflow:
		return "overflow"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is what a watcher reports.
type Event struct {
	// Kind says what happened.
	Kind EventKind
	// Name is the name that it happened to; empty for events of the owner and an overflow.
	Name string
	// Version is the version that was published, or was the newest when the name was withdrawn.
	Version uint64
	// Server is the id of the owner.
	Server string
}

// Watcher reports what happens to names, across reconnections. It keeps the newest event of each name until a loop
// takes it, so a slow reader misses versions in between, never the newest, and holds up nobody. Of more than 16384
// names it keeps nothing, and says so by [EventOverflow].
type Watcher struct{ of *watch.Watcher }

// Watch watches the names, or to all of them if none is given. The names need not be published yet. What
// is published now comes first. When Watch returns, the owner has begun the watch. The caller closes the watcher.
//
//	w, err := client.Watch(ctx, "llm")
//	…
//	defer w.Close()
//	for e, err := range w.Events(ctx) {
func (c *Client) Watch(ctx context.Context, names ...string) (*Watcher, error) {
	w, err := c.watchers.Watch(ctx, names...)
	if err != nil {
		return nil, err
	}
	return &Watcher{w}, nil
}

// Events are the events that no loop has taken yet, and those to come. An error is the last pair: [ErrClosed] when the
// watcher or its client was closed, the owner's refusal to go on with the watch after a reconnection, the cause of ctx.
// Leaving the loop does not close the watcher: the next loop goes on behind the last event of this one.
func (w *Watcher) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for e, err := range w.of.Events(ctx) {
			if !yield(Event{Kind: EventKind(e.Kind), Name: e.Name, Version: e.Version, Server: e.Server}, err) {
				return
			}
		}
	}
}

// Close ends the watch. A second Close is nil.
func (w *Watcher) Close() error {
	w.of.Close()
	return nil
}
