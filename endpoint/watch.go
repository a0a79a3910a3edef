package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// EventKind says what an [Event] is about.
type EventKind uint8

const (
	// EventPublished is a version that has become the newest of its name, or, when a watch begins or an owner comes
	// back, is it.
	EventPublished EventKind = iota + 1
	// EventWithdrawn is a name that cannot be acquired any more.
	EventWithdrawn
	// EventOwnerLost is the connection to the owner that ended, or its owner that said it is leaving. The client dials
	// again by itself.
	EventOwnerLost
	// EventOwnerBack is the connection to an owner, the same or another, that was made again.
	EventOwnerBack
	// EventOverflow is told where so many names changed since the last event that what was known of them was dropped:
	// ask for the list.
	EventOverflow
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

// Event is what a watcher is told.
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

// Watcher is told what happens to names, across reconnections. It keeps the newest event of each name until a loop
// takes it, so a slow reader misses versions in between, never the newest, and holds up nobody. Of more than 16384
// names it keeps nothing, and says so by [EventOverflow].
type Watcher struct {
	held  *holdings
	names []string
	wake  chan struct{} // has room for one

	mu      sync.Mutex
	link    *link.Link        // whose events count; nil while there is none
	request uint64            // the request that they belong to; 0 until it is answered
	began   bool              // some owner has answered: what becomes of it is news from then on
	server  string            // whose versions seen are
	seen    map[string]uint64 // the newest version that was heard of, of names that were not withdrawn
	pending map[string]Event  // by name; others under ownerKey and overflowKey
	queue   []string          // the keys of pending, the oldest first
	err     error             // why no more events come
}

// Watch tells what happens to the names, or to all of them if none is given. The names need not be published yet. What
// is published now is told first. When Watch returns, the owner has begun to tell. The caller closes the watcher.
//
//	w, err := client.Watch(ctx, "llm")
//	…
//	defer w.Close()
//	for e, err := range w.Events(ctx) {
func (c *Client) Watch(ctx context.Context, names ...string) (*Watcher, error) {
	w := &Watcher{
		held: &c.holdings, names: slices.Clone(names), wake: make(chan struct{}, 1),
		seen: map[string]uint64{}, pending: map[string]Event{},
	}
	// The client knows of the watcher before it asks on any connection: then whichever comes next takes it up.
	if !c.addWatcher(w) {
		return nil, fmt.Errorf("watch: %w", status.ErrClosed)
	}
	for {
		l, err := c.connected(ctx)
		if err == nil {
			err = w.begin(ctx, l, false)
		}
		if err == nil {
			return w, nil
		}
		if l == nil || !errors.Is(err, status.ErrUnavailable) || ctx.Err() != nil {
			w.Close()
			return nil, fmt.Errorf("watch: %w", err)
		}
	}
}

// begin asks for events on a connection, if that was not done before. With back, the watcher had another one and is
// told.
func (w *Watcher) begin(ctx context.Context, l *link.Link, back bool) error {
	ask, known, err := w.turnTo(l, back)
	if !ask {
		return err
	}
	// An owner that has said goodbye may still send events of its own versions when its successor is asked already.
	request := link.Request{Op: message.OpWatch, Body: message.Watch{Names: w.names}, Event: func(e message.Event) { w.event(l, e) }, Late: l.EndLateWatch}
	id, frame, err := l.RoundTrip(ctx, request)
	if err != nil {
		w.lost(l)
		return err
	}
	frame.Files.Close()
	l.Receiver.Listen(1)
	if !w.begun(l, id) { // closed meanwhile
		l.Unwatch(id)
		return nil
	}
	return w.catchUp(ctx, l, known)
}

// turnTo makes the events of a connection those that count. ask is false if they are, or cannot be. known are the names
// and versions that were heard of on the connection before, where that was to the same owner.
func (w *Watcher) turnTo(l *link.Link, back bool) (ask bool, known map[string]uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l || w.err != nil {
		return false, nil, w.err
	}
	if err := l.Reason(); err != nil { // then there may be another one already, whose events count
		return false, nil, err
	}
	w.link, w.request = l, 0
	if w.server != l.Server.Server { // another owner counts versions anew
		w.server = l.Server.Server
		clear(w.seen)
	}
	if back {
		w.ownerLocked(EventOwnerBack, l)
	}
	return true, maps.Clone(w.seen), nil
}

// catchUp finds names that were withdrawn while there was no connection: an owner begins a watch with what is current,
// and says nothing of what is not.
func (w *Watcher) catchUp(ctx context.Context, l *link.Link, known map[string]uint64) error {
	if len(known) == 0 {
		return nil
	}
	listed, err := listParts(func(ask message.List) (part message.Listed, err error) {
		_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpList, Body: ask})
		if err != nil {
			return part, err
		}
		defer frame.Files.Close()
		err = link.DecodeAnswer(frame, &part)
		return part, err
	})
	if err != nil {
		w.lost(l)
		return err
	}
	for _, m := range listed.Models {
		if !m.Withdrawn {
			delete(known, m.Name)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, version := range known {
		if w.link == l && w.seen[name] == version { // else events have come since
			delete(w.seen, name)
			w.putLocked(name, Event{Kind: EventWithdrawn, Name: name, Version: version, Server: w.server})
		}
	}
	return nil
}

// ended reports whether no more events come.
func (w *Watcher) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// begun notes the request that was answered. It is false when nobody wants its events any more.
func (w *Watcher) begun(l *link.Link, id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l {
		w.request = id
	}
	w.began = true
	if w.link == nil && w.err == nil { // it was over before it had begun
		w.ownerLocked(EventOwnerLost, l)
	}
	return w.err == nil
}

// on reports whether the events of a connection are those that count.
func (w *Watcher) on(l *link.Link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link == l
}

// ownerKey is where pending keeps what happened to the owner, and overflowKey that something was dropped: no name is
// like them.
const (
	ownerKey    = "\x00owner"
	overflowKey = "\x00overflow"
)

// maxWatched is how many names a watcher keeps something of.
const maxWatched = 16384

// lost notes that a connection is over.
func (w *Watcher) lost(l *link.Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link != l { // there is another one already
		return
	}
	w.link = nil
	w.ownerLocked(EventOwnerLost, l)
}

// ownerLocked keeps news of the owner at the other end of l.
func (w *Watcher) ownerLocked(kind EventKind, l *link.Link) {
	if w.began {
		w.putLocked(ownerKey, Event{Kind: kind, Server: l.Server.Server})
	}
}

// event is called by whoever reads the connection.
func (w *Watcher) event(l *link.Link, e message.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link != l {
		return
	}
	switch e.Kind {
	case message.EventPublished:
		if e.Version <= w.seen[e.Name] {
			return // told before, by the list of what is current
		}
		if len(w.seen) >= maxWatched {
			clear(w.seen) // then a version may be told twice
		}
		w.seen[e.Name] = e.Version
		w.putLocked(e.Name, Event{Kind: EventPublished, Name: e.Name, Version: e.Version, Server: w.server})
	case message.EventWithdrawn:
		if e.Version < w.seen[e.Name] {
			return // published anew since
		}
		delete(w.seen, e.Name) // an owner does not go back behind a withdrawal
		w.putLocked(e.Name, Event{Kind: EventWithdrawn, Name: e.Name, Version: e.Version, Server: w.server})
	}
}

// putLocked keeps an event until a loop takes it, in the place of an older one of the same name.
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

// overflowLocked drops what is pending of names, and keeps that it did.
func (w *Watcher) overflowLocked() {
	owner, told := w.pending[ownerKey]
	clear(w.pending)
	w.queue = nil
	if told {
		w.pending[ownerKey], w.queue = owner, append(w.queue, ownerKey)
	}
	w.pending[overflowKey], w.queue = Event{Kind: EventOverflow, Server: w.server}, append(w.queue, overflowKey)
}

// Events are the events that no loop has taken yet, and those to come. An error is the last pair: [ErrClosed] when the
// watcher or its client was closed, the owner's refusal to go on with the watch after a reconnection, the cause of ctx.
// Leaving the loop does not close the watcher: the next loop goes on behind the last event of this one.
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
			return Event{}, context.Cause(ctx)
		}
	}
}

// take returns the oldest pending event, if there is one.
func (w *Watcher) take() (Event, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return Event{}, false, w.err
	}
	key := w.queue[0]
	w.queue = w.queue[1:]
	e := w.pending[key]
	delete(w.pending, key)
	return e, true, nil
}

// Close ends the watch. A second Close is nil.
func (w *Watcher) Close() error {
	w.held.forgetWatcher(w)
	w.end(status.ErrClosed)
	return nil
}

// end notes that no more events come, and tells the owner.
func (w *Watcher) end(err error) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.err = fmt.Errorf("watcher: %w", err)
	l, id := w.link, w.request
	w.link, w.queue = nil, nil
	clear(w.pending)
	w.mu.Unlock()
	close(w.wake)            // nothing is put any more
	if l != nil && id != 0 { // begin sees to a request that is not answered yet
		l.Unwatch(id)
	}
}
