package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
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
	of    *Connector
	names []string
	wake  chan struct{} // capacity 1

	mu      sync.Mutex
	conn    *Conn             // current connection, events of others are ignored; nil for none
	asking  chan struct{}     // closed when the request on conn was answered or has failed
	refused error             // why the owner refused the request on conn
	request uint64            // id of the request on conn; 0 until it is answered
	began   bool              // an owner has answered; later changes of the owner are events
	server  string            // owner that answered last
	catalog string            // catalog that seen refers to
	seen    map[string]uint64 // newest known version of each name that was not withdrawn
	pending map[string]Event  // by name, or by ownerKey and overflowKey
	queue   []string          // keys of pending, oldest first
	err     error             // why the watcher has ended
}

// Watch starts to watch the names, or all names if there are none. It returns after the owner has started the watch. If
// wait is set, it waits for an owner. The caller closes the watcher.
func (c *Connector) Watch(ctx context.Context, wait bool, names ...string) (*Watcher, error) {
	w := c.newWatcher(names)
	// Added before the first request: each connection from now on resumes the watch.
	if !c.add(w) {
		return nil, status.Closed("the client")
	}
	if err := c.establish(ctx, wait, func(conn *Conn) error { return w.establish(ctx, conn) }); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch: %w", err)
	}
	return w, nil
}

// newWatcher returns a watcher without a connection.
func (c *Connector) newWatcher(names []string) *Watcher {
	return &Watcher{of: c, names: slices.Clone(names), wake: make(chan struct{}, 1), seen: map[string]uint64{}, pending: map[string]Event{}}
}

// errNotBegun is the error of a watch whose connection ended while another goroutine was requesting it.
var errNotBegun = fmt.Errorf("%w: the connection ended before the owner began the watch", status.ErrUnavailable)

// establish starts the watch on a connection. If the connection is resuming the watch, establish waits for that.
func (w *Watcher) establish(ctx context.Context, conn *Conn) error {
	if err := w.begin(ctx, conn, false); err != nil {
		return err
	}
	w.mu.Lock()
	asking := w.asking
	w.mu.Unlock()
	select {
	case <-asking:
	case <-ctx.Done():
		return ended.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.refused != nil: // resume ends the watcher a moment later
		return w.refused
	case !w.began:
		return errNotBegun
	}
	return nil
}

// resume implements [dependent]. If the owner refuses the watch, the watcher ends.
func (w *Watcher) resume(ctx context.Context, conn *Conn) error {
	err := w.begin(ctx, conn, true)
	if w.ended() { // closed meanwhile, which is not an error of the connection
		return nil
	}
	if !refused(err) {
		return err
	}
	w.of.remove(w)
	w.endWith(err)
	return nil
}

// begin requests events on a connection unless another goroutine has done so. If back is set, this is a reconnection,
// which begin reports as an event.
func (w *Watcher) begin(ctx context.Context, conn *Conn, back bool) error {
	asking, known, err := w.bindLink(conn, back)
	if asking == nil {
		return err
	}
	defer close(asking)
	// An owner that said goodbye may still send events after its successor has received the request.
	request := Request{Op: message.OpWatch, Body: message.Watch{Names: w.names}, Event: func(e message.Event) { w.event(conn, e) }, Late: conn.endLateWatch}
	id, frame, err := conn.RoundTrip(ctx, request)
	if err != nil {
		w.refuse(conn, err)
		w.lost(conn)
		return err
	}
	frame.Files.Close()
	conn.receiver.Listen(1)
	if !w.begun(conn, id) { // closed meanwhile
		conn.unwatch(id)
		return nil
	}
	return w.catchUp(ctx, conn, known)
}

// refuse records that the owner refused the request on a connection. It does nothing for other errors.
func (w *Watcher) refuse(conn *Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == conn && refused(err) {
		w.refused = err
	}
}

// bindLink makes the watcher accept only events of conn. The caller then requests the events and closes asking. asking
// is nil if conn cannot be bound or another goroutine has bound it. known holds the names and versions that were seen
// on the previous connection to the same owner.
func (w *Watcher) bindLink(conn *Conn, back bool) (asking chan struct{}, known map[string]uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == conn || w.err != nil {
		return nil, nil, w.err
	}
	if err := conn.reason(); err != nil { // the watcher may already be bound to the next connection
		return nil, nil, err
	}
	w.conn, w.request, w.refused, w.asking = conn, 0, nil, make(chan struct{})
	if id := conn.Server.Published(); w.catalog != id { // each catalog has its own version numbers
		w.catalog = id
		clear(w.seen)
	}
	w.server = conn.Server.Server
	if back {
		w.ownerLocked(Event{OwnerBack: true}, conn)
	}
	return w.asking, maps.Clone(w.seen), nil
}

// catchUp detects names that were withdrawn while there was no connection. It is needed because an owner starts a watch
// with the current versions only.
func (w *Watcher) catchUp(ctx context.Context, conn *Conn, known map[string]uint64) error {
	if len(known) == 0 {
		return nil
	}
	listed, err := listParts(func(ask message.List) (part message.Listed, err error) {
		err = conn.request(ctx, Request{Op: message.OpList, Body: ask}, &part)
		return part, err
	})
	if err != nil {
		w.lost(conn)
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
		if w.conn == conn && w.seen[name] == version { // otherwise events have arrived since
			delete(w.seen, name)
			w.putLocked(name, Event{Withdrawn: true, Name: name, Version: version, Server: w.server})
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
func (w *Watcher) begun(conn *Conn, id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == conn {
		w.request = id
	}
	w.began = true
	if w.conn == nil && w.err == nil { // the connection ended before the watch began
		w.ownerLocked(Event{OwnerLost: true}, conn)
	}
	return w.err == nil
}

// Needsresume implements [dependent]. It returns false if the watcher is bound to conn.
func (w *Watcher) needsResume(conn *Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conn != conn
}

// ownerKey and overflowKey are the keys in pending for events of the owner and for overflows. They are not valid names.
const (
	ownerKey    = "\x00owner"
	overflowKey = "\x00overflow"
)

// maxWatched is the maximum number of names for which a watcher keeps versions or events.
const maxWatched = 16384

// lost implements [dependent].
func (w *Watcher) lost(conn *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != conn { // another connection has replaced it
		return
	}
	w.conn = nil
	w.ownerLocked(Event{OwnerLost: true}, conn)
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
	w.mu.Lock()
	defer w.mu.Unlock()
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
	w.of.remove(w)
	w.end()
}

// end implements [dependent].
func (w *Watcher) end() { w.endWith(status.Closed("the watcher")) }

// endWith ends the watcher with err and notifies the owner.
func (w *Watcher) endWith(err error) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.err = fmt.Errorf("watcher: %w", err)
	conn, id := w.conn, w.request
	w.conn, w.queue = nil, nil
	clear(w.pending)
	w.mu.Unlock()
	close(w.wake)               // there are no later sends: w.err is set
	if conn != nil && id != 0 { // otherwise begin ends the request after its answer
		conn.unwatch(id)
	}
}
