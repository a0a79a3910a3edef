// Package watch receives an owner's events about names, across connections.
package watch

import (
	"context"
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

// Event is one event of a watcher.
type Event struct {
	Kind    Kind   // of the event
	Name    string // of the model; empty for events of the owner and overflows
	Version uint64 // published version, or the newest one when the name was withdrawn
	Server  string // id of the owner
}

// Kind is the kind of an [Event].
type Kind uint8

// The kinds of events, as defined by package endpoint.
const (
	Published Kind = iota + 1
	Withdrawn
	OwnerLost
	OwnerBack
	Overflow
)

// Watcher receives events about names, across reconnections. It keeps the newest event of each name until a loop takes
// it. A slow reader therefore misses intermediate versions, but not the newest one, and does not delay others. If
// events of more than 16384 names are pending, the watcher drops them and reports [Overflow].
type Watcher struct {
	of    *Watchers
	names []string
	wake  chan struct{} // capacity 1

	mu      sync.Mutex
	link    *link.Link        // current connection, events of others are ignored; nil for none
	asking  chan struct{}     // closed when the request on link was answered or has failed
	refused error             // why the owner refused the request on link
	request uint64            // id of the request on link; 0 until it is answered
	began   bool              // an owner has answered; later changes of the owner are events
	server  string            // owner that seen refers to
	seen    map[string]uint64 // newest known version of each name that was not withdrawn
	pending map[string]Event  // by name, or by ownerKey and overflowKey
	queue   []string          // keys of pending, oldest first
	err     error             // why the watcher has ended
}

// Watchers holds the watchers of one client.
type Watchers struct {
	connector.Set[*Watcher]
	conn *connector.Connector
}

// New returns the watchers of a client. The caller adds them to the dependents of the connector.
func New(conn *connector.Connector) *Watchers { return &Watchers{conn: conn} }

// Watch starts to watch the names, or all names if there are none. It returns after the owner has started the watch. If
// wait is set, it waits for an owner. The caller closes the watcher.
func (s *Watchers) Watch(ctx context.Context, wait bool, names ...string) (*Watcher, error) {
	w := s.newWatcher(names)
	// Added before the first request: each connection from now on resumes the watch.
	if !s.Add(w) {
		return nil, status.Closed("the client")
	}
	if err := s.conn.Establish(ctx, wait, func(l *link.Link) error { return w.establish(ctx, l) }); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch: %w", err)
	}
	return w, nil
}

// newWatcher returns a watcher without a connection.
func (s *Watchers) newWatcher(names []string) *Watcher {
	return &Watcher{
		of: s, names: slices.Clone(names), wake: make(chan struct{}, 1),
		seen: map[string]uint64{}, pending: map[string]Event{},
	}
}

// errNotBegun is the error of a watch whose connection ended while another goroutine was requesting it.
var errNotBegun = fmt.Errorf("%w: the connection ended before the owner began the watch", status.ErrUnavailable)

// establish starts the watch on a connection. If the connection is resuming the watch, establish waits for that.
func (w *Watcher) establish(ctx context.Context, l *link.Link) error {
	if err := w.begin(ctx, l, false); err != nil {
		return err
	}
	w.mu.Lock()
	asking := w.asking
	w.mu.Unlock()
	select {
	case <-asking:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.refused != nil: // Resume ends the watcher a moment later
		return w.refused
	case !w.began:
		return errNotBegun
	}
	return nil
}

// Resume implements [connector.Dependent]. If the owner refuses the watch, the watcher ends.
func (w *Watcher) Resume(ctx context.Context, l *link.Link) error {
	err := w.begin(ctx, l, true)
	if w.ended() { // closed meanwhile, which is not an error of the connection
		return nil
	}
	if !connector.Refused(err) {
		return err
	}
	w.of.Remove(w)
	w.end(err)
	return nil
}

// begin requests events on a connection unless another goroutine has done so. If back is set, this is a reconnection,
// which begin reports as an event.
func (w *Watcher) begin(ctx context.Context, l *link.Link, back bool) error {
	asking, known, err := w.bindLink(l, back)
	if asking == nil {
		return err
	}
	defer close(asking)
	// An owner that said goodbye may still send events after its successor has received the request.
	request := link.Request{Op: message.OpWatch, Body: message.Watch{Names: w.names}, Event: func(e message.Event) { w.event(l, e) }, Late: l.EndLateWatch}
	id, frame, err := l.RoundTrip(ctx, request)
	if err != nil {
		w.refuse(l, err)
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

// refuse records that the owner refused the request on a connection. It does nothing for other errors.
func (w *Watcher) refuse(l *link.Link, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l && connector.Refused(err) {
		w.refused = err
	}
}

// bindLink makes the watcher accept only events of l. The caller then requests the events and closes asking. asking is
// nil if l cannot be bound or another goroutine has bound it. known holds the names and versions that were seen on the
// previous connection to the same owner.
func (w *Watcher) bindLink(l *link.Link, back bool) (asking chan struct{}, known map[string]uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l || w.err != nil {
		return nil, nil, w.err
	}
	if err := l.Reason(); err != nil { // the watcher may already be bound to the next connection
		return nil, nil, err
	}
	w.link, w.request, w.refused, w.asking = l, 0, nil, make(chan struct{})
	if w.server != l.Server.Server { // each owner has its own version numbers
		w.server = l.Server.Server
		clear(w.seen)
	}
	if back {
		w.ownerLocked(OwnerBack, l)
	}
	return w.asking, maps.Clone(w.seen), nil
}

// catchUp detects names that were withdrawn while there was no connection. It is needed because an owner starts a watch
// with the current versions only.
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
		if w.link == l && w.seen[name] == version { // otherwise events have arrived since
			delete(w.seen, name)
			w.putLocked(name, Event{Kind: Withdrawn, Name: name, Version: version, Server: w.server})
		}
	}
	return nil
}

// ended reports whether the watcher has ended.
func (w *Watcher) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// begun records the id of the answered request. It returns false if its events are no longer needed.
func (w *Watcher) begun(l *link.Link, id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l {
		w.request = id
	}
	w.began = true
	if w.link == nil && w.err == nil { // the connection ended before the watch began
		w.ownerLocked(OwnerLost, l)
	}
	return w.err == nil
}

// NeedsResume implements [connector.Dependent]. It returns false if the watcher is bound to l.
func (w *Watcher) NeedsResume(l *link.Link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link != l
}

// ownerKey and overflowKey are the keys in pending for events of the owner and for overflows. They are not valid names.
const (
	ownerKey    = "\x00owner"
	overflowKey = "\x00overflow"
)

// maxWatched is the maximum number of names for which a watcher keeps versions or events.
const maxWatched = 16384

// Lost implements [connector.Dependent].
func (w *Watcher) Lost(l *link.Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link != l { // another connection has replaced it
		return
	}
	w.link = nil
	w.ownerLocked(OwnerLost, l)
}

// ownerLocked adds an event about the owner of l.
func (w *Watcher) ownerLocked(kind Kind, l *link.Link) {
	if w.began {
		w.putLocked(ownerKey, Event{Kind: kind, Server: l.Server.Server})
	}
}

// event handles an event. It runs in the goroutine that reads the connection.
func (w *Watcher) event(l *link.Link, e message.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link != l {
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
		w.putLocked(e.Name, Event{Kind: Published, Name: e.Name, Version: e.Version, Server: w.server})
	case message.EventWithdrawn:
		if e.Version < w.seen[e.Name] {
			return // published again since
		}
		delete(w.seen, e.Name) // later publications have higher versions
		w.putLocked(e.Name, Event{Kind: Withdrawn, Name: e.Name, Version: e.Version, Server: w.server})
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
	w.pending[overflowKey], w.queue = Event{Kind: Overflow, Server: w.server}, append(w.queue, overflowKey)
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
			return Event{}, context.Cause(ctx)
		}
	}
}

// take removes and returns the oldest pending event, if there is one.
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
	w.end(status.Closed("the watcher"))
}

// End implements [connector.Dependent].
func (w *Watcher) End() { w.end(status.Closed("the watcher")) }

// end ends the watcher with err and notifies the owner.
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
	close(w.wake)            // there are no later sends: w.err is set
	if l != nil && id != 0 { // otherwise begin ends the request after its answer
		l.Unwatch(id)
	}
}
