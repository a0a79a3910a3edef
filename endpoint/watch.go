package endpoint

import (
	"context"
	"fmt"
	"iter"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
)

// EventKind is the kind of an [Event].
type EventKind uint8

const (
	// EventPublished reports the newest version of a name: when it is published, and for each published name when a
	// watch begins or an owner returns.
	EventPublished EventKind = iota + 1
	// EventWithdrawn reports that a name can no longer be acquired.
	EventWithdrawn
	// EventOwnerLost reports that the connection to the owner ended, or that the owner is shutting down. The client
	// reconnects automatically.
	EventOwnerLost
	// EventOwnerBack reports a new connection to the same or another owner.
	EventOwnerBack
	// EventOverflow reports that events were dropped because too many names changed. List the models to recover.
	EventOverflow
)

// String returns the kind in one or two words.
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

// Event is an event of a [Watcher].
type Event struct {
	// Kind is the kind of the event.
	Kind EventKind
	// Name is the name that changed; empty for events of the owner and for an overflow.
	Name string
	// Version is the published version, or the last one of a withdrawn name.
	Version uint64
	// Server is the id of the owner.
	Server string
}

// Watcher reports changes of names, across reconnections. It keeps the newest event of each name until a loop reads it.
// A slow reader misses intermediate versions but never the newest and delays no other reader. If more than 16384 names
// have unread events, it drops them and reports [EventOverflow].
type Watcher struct{ of *client.Watcher }

// Watch watches the given names, or all names if none is given. Names need not be published yet. The first events
// report what is published now. When Watch returns, the owner has started the watch. The caller closes the watcher.
//
//	w, err := client.Watch(ctx, "llm")
//	…
//	defer w.Close()
//	for e, err := range w.Events(ctx) {
func (c *Client) Watch(ctx context.Context, names ...string) (*Watcher, error) {
	return c.watch(ctx, false, names...)
}

// watch implements Watch. If wait is true, it waits for an owner.
func (c *Client) watch(ctx context.Context, wait bool, names ...string) (*Watcher, error) {
	w, err := c.conn.Watch(ctx, wait, names...)
	if err != nil {
		return nil, err
	}
	return &Watcher{w}, nil
}

// Events returns the unread events and those that follow. An error is the last pair: [ErrClosed] if the watcher or its
// client was closed, the owner's refusal to resume the watch after a reconnection, or the cause of ctx. Leaving the
// loop does not close the watcher: the next loop continues after the last event.
func (w *Watcher) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for e, err := range w.of.Events(ctx) {
			if !yield(Event{Kind: eventKind(e, err), Name: e.Name, Version: e.Version, Server: e.Server}, err) {
				return
			}
		}
	}
}

// Close ends the watch. A second Close returns nil.
func (w *Watcher) Close() error {
	w.of.Close()
	return nil
}

// eventKind returns the kind of an event; 0 for an error.
func eventKind(e client.Event, err error) EventKind {
	switch {
	case err != nil:
		return 0
	case e.Withdrawn:
		return EventWithdrawn
	case e.OwnerLost:
		return EventOwnerLost
	case e.OwnerBack:
		return EventOwnerBack
	case e.Overflow:
		return EventOverflow
	}
	return EventPublished
}
