package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Event is one event of a watcher: a published version unless a flag is set.
type Event struct {
	Name      string // of the model; empty for events of the owner and overflows
	Version   uint64 // published version, or the newest one when the name was withdrawn
	Server    string // id of the owner
	Withdrawn bool   // the name was withdrawn
	OwnerLost bool   // the connection ended or is about to
	OwnerBack bool   // an owner has answered again
	Overflow  bool   // events were dropped
}

// Watcher receives events about names, across reconnections. It keeps the newest event of each name until a loop takes
// it. A slow reader therefore misses intermediate versions, but not the newest one, and does not delay others. If
// events of more than 16384 names are pending, the watcher drops them and reports an overflow.
type Watcher struct {
	record
	names []string
	wake  chan struct{} // capacity 1

	// Guarded by the connector's lock.
	request  uint64            // id of the accepted request on the connection
	list     *message.List     // next part of the list that detects withdrawn names; nil for none
	unlisted map[string]uint64 // versions of the last connection that were not in the list yet
	server   string            // owner that was requested last
	catalog  string            // catalog that seen refers to
	seen     map[string]uint64 // newest known version of each name that was not withdrawn
	pending  map[string]Event  // by name, or by ownerKey and overflowKey
	queue    []string          // keys of pending, oldest first
	err      error             // why the watcher has ended
}

// Watch starts to watch the names, or all names if there are none. It returns after the owner has started the watch. If
// wait is set, it waits for an owner. The caller closes the watcher.
func (c *Connector) Watch(ctx context.Context, wait bool, names ...string) (*Watcher, error) {
	w := c.newWatcher(names)
	if !c.add(&w.record) {
		return nil, status.Closed("the client")
	}
	if err := c.establish(ctx, wait, func(conn *Conn) error { return c.await(ctx, conn, &w.record) }); err != nil {
		c.abandon(&w.record, err)
		return nil, fmt.Errorf("watch: %w", err)
	}
	return w, nil
}

// newWatcher returns a watcher that is not in the table.
func (c *Connector) newWatcher(names []string) *Watcher {
	w := &Watcher{names: slices.Clone(names), wake: make(chan struct{}, 1), seen: map[string]uint64{}, pending: map[string]Event{}}
	w.record = record{of: c, content: w}
	return w
}

// askLocked implements [content]. The watch comes first. If versions are known from an earlier connection to the same
// owner, the list of models follows: an owner starts a watch with the current versions only, so names that were withdrawn
// meanwhile are detected by comparison.
func (w *Watcher) askLocked(conn *Conn) (Request, error) {
	if w.list != nil {
		return Request{Op: message.OpList, Body: *w.list}, nil
	}
	if id := conn.Server.Published(); w.catalog != id { // each catalog has its own version numbers
		w.catalog = id
		clear(w.seen)
	}
	w.server, w.unlisted = conn.Server.Server, maps.Clone(w.seen)
	w.ownerLocked(Event{OwnerBack: true}, conn)
	// An owner that said goodbye may still send events after its successor has received the request.
	return Request{Op: message.OpWatch, Body: message.Watch{Names: w.names}, Event: func(e message.Event) { w.event(conn, e) }, Late: conn.endLateWatch}, nil
}

// acceptLocked implements [content].
func (w *Watcher) acceptLocked(frame wire.Frame) (more bool, err error) {
	if w.list == nil {
		w.request = frame.ID
		w.conn.receiver.Listen(1)
		if len(w.unlisted) > 0 {
			w.list = &message.List{}
		}
		return w.list != nil, nil
	}
	var part message.Listed
	if err := decodeAnswer(frame, &part); err != nil {
		return false, err
	}
	for _, m := range part.Models {
		if !m.Withdrawn {
			delete(w.unlisted, m.Name)
		}
	}
	if w.list, err = nextPart(*w.list, part); err != nil || w.list != nil {
		return true, err
	}
	for name, version := range w.unlisted {
		if w.seen[name] == version { // otherwise events have arrived since
			delete(w.seen, name)
			w.putLocked(name, Event{Withdrawn: true, Name: name, Version: version, Server: w.server})
		}
	}
	w.unlisted = nil
	return false, nil
}

// refused implements [content]. It ends the watcher.
func (w *Watcher) refused(err error) { w.of.end(&w.record, err) }

// ownerKey and overflowKey are the keys in pending for events of the owner and for overflows. They are not valid names.
const (
	ownerKey    = "\x00owner"
	overflowKey = "\x00overflow"
)

// maxWatched is the maximum number of names for which a watcher keeps versions or events.
const maxWatched = 16384

// lostLocked implements [content].
func (w *Watcher) lostLocked(conn *Conn) {
	if w.conn == conn {
		w.list, w.unlisted = nil, nil
		w.ownerLocked(Event{OwnerLost: true}, conn)
	}
}

// ownerLocked adds an event about the owner of conn.
func (w *Watcher) ownerLocked(e Event, conn *Conn) {
	if w.began {
		e.Server = conn.Server.Server
		w.putLocked(ownerKey, e)
	}
}

// event handles an event. It runs in the goroutine that reads the connection.
func (w *Watcher) event(conn *Conn, e message.Event) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.conn != conn {
		return
	}
	switch e.Kind {
	case message.EventPublished:
		if e.Version <= w.seen[e.Name] {
			return // already reported by the list of current versions
		}
		if len(w.seen) >= maxWatched {
			clear(w.seen) // a version may then be reported twice
		}
		w.seen[e.Name] = e.Version
		w.putLocked(e.Name, Event{Name: e.Name, Version: e.Version, Server: w.server})
	case message.EventWithdrawn:
		if e.Version < w.seen[e.Name] {
			return // published again since
		}
		delete(w.seen, e.Name) // later publications have higher versions
		w.putLocked(e.Name, Event{Withdrawn: true, Name: e.Name, Version: e.Version, Server: w.server})
	}
}

// putLocked stores an event until a loop takes it. It replaces an older event of the same name.
func (w *Watcher) putLocked(key string, e Event) {
	if w.err != nil {
		return
	}
	if _, waiting := w.pending[key]; !waiting {
		if len(w.queue) >= maxWatched {
			w.overflowLocked()
		}
		w.queue = append(w.queue, key)
	}
	w.pending[key] = e
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// overflowLocked drops the pending events of names and stores an overflow event.
func (w *Watcher) overflowLocked() {
	owner, waits := w.pending[ownerKey]
	clear(w.pending)
	w.queue = nil
	if waits {
		w.pending[ownerKey], w.queue = owner, append(w.queue, ownerKey)
	}
	w.pending[overflowKey], w.queue = Event{Overflow: true, Server: w.server}, append(w.queue, overflowKey)
}

// Events returns the pending and the future events. The last pair has an error: [ErrClosed] if the watcher or its
// client was closed, the owner's error if it refused the watch after a reconnection, or the cause of ctx. Breaking the
// loop does not close the watcher; the next loop continues after the last event.
func (w *Watcher) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := w.next(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// next waits for the next event.
func (w *Watcher) next(ctx context.Context) (Event, error) {
	for {
		e, ok, err := w.take()
		if ok || err != nil {
			return e, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return Event{}, ended.Cause(ctx)
		}
	}
}

// take removes and returns the oldest pending event, if there is one.
func (w *Watcher) take() (Event, bool, error) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if len(w.queue) == 0 {
		return Event{}, false, w.err
	}
	key := w.queue[0]
	w.queue = w.queue[1:]
	e := w.pending[key]
	delete(w.pending, key)
	return e, true, nil
}

// Close ends the watch.
func (w *Watcher) Close() { w.of.end(&w.record, status.Closed("the watcher")) }

// endLocked implements [content].
func (w *Watcher) endLocked(err error) {
	w.err = fmt.Errorf("watcher: %w", err)
	w.queue = nil
	clear(w.pending)
	close(w.wake) // there are no later sends: w.err is set
}

// release implements [content].
func (w *Watcher) release(conn *Conn) { conn.unwatch(w.request) }
