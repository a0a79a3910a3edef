// Package watch hears from an owner what becomes of names, across connections.
package watch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Event is what a watcher hears.
type Event struct {
	Kind    Kind   // what happened
	Name    string // that it happened to; empty for events of the owner and an overflow
	Version uint64 // that was published, or was the newest when the name was withdrawn
	Server  string // the id of the owner
}

// Kind says what an [Event] is about.
type Kind uint8

// The kinds of events, as package endpoint has them.
const (
	Published Kind = iota + 1
	Withdrawn
	OwnerLost
	OwnerBack
	Overflow
)

// Watcher hears what happens to names, across reconnections. It keeps the newest event of each name until a loop
// takes it, so a slow reader misses versions in between, never the newest, and holds up nobody. Of more than 16384
// names it keeps nothing, and says so by [Overflow].
type Watcher struct {
	of    *Watchers
	names []string
	wake  chan struct{} // has room for one

	mu      sync.Mutex
	link    *link.Link        // events of other connections are ignored; nil while the watch is on no connection
	request uint64            // the request that they belong to; 0 until it is answered
	began   bool              // some owner has answered: what becomes of the owner is an event from then on
	server  string            // whose versions seen are
	seen    map[string]uint64 // the newest version that was heard of, of names that were not withdrawn
	pending map[string]Event  // by name; others under ownerKey and overflowKey
	queue   []string          // the keys of pending, the oldest first
	err     error             // why no more events come
}

// Watchers are those of one client.
type Watchers struct {
	connector.Set[*Watcher]
	conn *connector.Connector
}

// New makes the watchers of a client. The caller adds them to the dependents of the connector.
func New(conn *connector.Connector) *Watchers { return &Watchers{conn: conn} }

// Watch begins to watch the names, or all of them if none is given. When it returns, the owner has begun the watch. The
// caller closes the watcher.
func (s *Watchers) Watch(ctx context.Context, names ...string) (*Watcher, error) {
	w := &Watcher{
		of: s, names: slices.Clone(names), wake: make(chan struct{}, 1),
		seen: map[string]uint64{}, pending: map[string]Event{},
	}
	// The watcher is known before it asks on any connection: then whichever comes next takes it up.
	if !s.Add(w) {
		return nil, fmt.Errorf("watch: %w", status.ErrClosed)
	}
	for {
		l, err := s.conn.Connected(ctx)
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

// Resume implements [connector.Dependent]. If the owner refuses the watch, the watcher ends.
func (w *Watcher) Resume(ctx context.Context, l *link.Link) error {
	err := w.begin(ctx, l, true)
	if w.ended() { // closed meanwhile: it ends alone
		return nil
	}
	if !connector.Refused(err) {
		return err
	}
	w.of.Remove(w)
	w.end(err)
	return nil
}

// begin asks for events on a connection, if that was not done before. With back, the watcher had another one, and
// an event says so.
func (w *Watcher) begin(ctx context.Context, l *link.Link, back bool) error {
	ask, known, err := w.turnTo(l, back)
	if !ask {
		return err
	}
	// An owner that has said goodbye may still send events of its own versions when its successor is asked already.
	request := link.Request{Op: message.OpWatch, Body: message.Watch{Names: w.names}, Event: func(e message.Event) { w.event(l, e) }, Late: l.EndLateWatch}
	id, frame, err := l.RoundTrip(ctx, request)
	if err != nil {
		w.Lost(l)
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
		w.ownerLocked(OwnerBack, l)
	}
	return true, maps.Clone(w.seen), nil
}

// catchUp finds names that were withdrawn while there was no connection: an owner begins a watch with what is current,
// and says nothing of what is not.
func (w *Watcher) catchUp(ctx context.Context, l *link.Link, known map[string]uint64) error {
	if len(known) == 0 {
		return nil
	}
	listed, err := link.ListParts(func(ask message.List) (part message.Listed, err error) {
		_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpList, Body: ask})
		if err != nil {
			return part, err
		}
		defer frame.Files.Close()
		err = link.DecodeAnswer(frame, &part)
		return part, err
	})
	if err != nil {
		w.Lost(l)
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
			w.putLocked(name, Event{Kind: Withdrawn, Name: name, Version: version, Server: w.server})
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
		w.ownerLocked(OwnerLost, l)
	}
	return w.err == nil
}

// On implements [connector.Dependent]: the events of that connection are those that count.
func (w *Watcher) On(l *link.Link) bool {
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

// Lost implements [connector.Dependent].
func (w *Watcher) Lost(l *link.Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link != l { // there is another one already
		return
	}
	w.link = nil
	w.ownerLocked(OwnerLost, l)
}

// ownerLocked keeps what became of the owner at the other end of l.
func (w *Watcher) ownerLocked(kind Kind, l *link.Link) {
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
			return // known from the list of what is current
		}
		if len(w.seen) >= maxWatched {
			clear(w.seen) // then a version may come twice
		}
		w.seen[e.Name] = e.Version
		w.putLocked(e.Name, Event{Kind: Published, Name: e.Name, Version: e.Version, Server: w.server})
	case message.EventWithdrawn:
		if e.Version < w.seen[e.Name] {
			return // published anew since
		}
		delete(w.seen, e.Name) // an owner does not go back behind a withdrawal
		w.putLocked(e.Name, Event{Kind: Withdrawn, Name: e.Name, Version: e.Version, Server: w.server})
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
	owner, waits := w.pending[ownerKey]
	clear(w.pending)
	w.queue = nil
	if waits {
		w.pending[ownerKey], w.queue = owner, append(w.queue, ownerKey)
	}
	w.pending[overflowKey], w.queue = Event{Kind: Overflow, Server: w.server}, append(w.queue, overflowKey)
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

// Close ends the watch.
func (w *Watcher) Close() {
	w.of.Remove(w)
	w.end(status.ErrClosed)
}

// End implements [connector.Dependent].
func (w *Watcher) End() { w.end(status.ErrClosed) }

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
