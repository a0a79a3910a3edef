package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// record is one entry of a client's table: a lease, reference, watcher or offer that the client wants from its owner. Each
// connection sends the request of each record. The lock of the connector guards the record and its content.
type record struct {
	of      *Connector
	content content
	id      uint64 // in the table

	conn    *Conn // connection on which the record was requested last; nil if that has ended
	state   recordState
	held    bool   // the owner has accepted the request on conn
	began   bool   // an owner has accepted the request on any connection
	sentID  uint64 // id of the last request on conn; 0 until it was sent
	left    bool   // the caller has left before the answer
	failure error  // reason of the refusal on conn; nil unless the state is settled
	ended   error  // why the record has ended; it has left the table then
	changed Signal // notified at each change of held, failure and ended
}

// recordState is the state of a record's request on its connection.
type recordState uint8

const (
	unsent  recordState = iota // on any connection if conn is nil
	sent                       // not answered yet
	settled                    // accepted or refused
)

// content is what a record requests. The methods must not block. Those whose names end in Locked are called with the
// connector's lock.
type content interface {
	// askLocked returns the next request on a connection. It fails if this owner cannot have the content.
	askLocked(conn *Conn) (Request, error)
	// acceptLocked applies the answer to the last request and borrows its frame. more means that askLocked has another
	// request. An error ends the connection.
	acceptLocked(frame wire.Frame) (more bool, err error)
	// refused handles the error of askLocked or of the owner, which is not [status.ErrUnavailable].
	refused(err error)
	// lostLocked handles the end of a connection, before the record is detached from it. The record may be on another one.
	lostLocked(conn *Conn)
	// endLocked handles the end of the record. It is called once.
	endLocked(err error)
	// release releases what the owner holds, without waiting. It is called after the end of a record that is held.
	release(conn *Conn)
}

// feed is the sending side of the table on one connection.
type feed struct {
	conn    *Conn
	wake    chan struct{} // capacity 1: a field below has changed
	unsent  []*record     // to be sent, in order
	later   []*record     // answered with ErrUnavailable: sent again after a pause
	open    int           // unanswered requests, except offers
	offers  int           // unanswered offers
	answers int           // received answers
}

func newFeed(conn *Conn) *feed { return &feed{conn: conn, wake: make(chan struct{}, 1)} }

// signal wakes the goroutine that sends.
func (f *feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// add adds a record to the table. It returns false if the client was closed.
func (c *Connector) add(r *record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.addLocked(r) {
		return false
	}
	c.queueLocked(r)
	return true
}

func (c *Connector) addLocked(r *record) bool {
	if c.closed {
		return false
	}
	c.lastRecord++
	r.id = c.lastRecord
	c.table[r.id] = r
	return true
}

// addHeldLocked adds a record that the owner has accepted on conn. If conn has ended, the next connection requests the
// record. It returns false if the client was closed.
func (c *Connector) addHeldLocked(r *record, conn *Conn) bool {
	if !c.addLocked(r) {
		return false
	}
	if conn.reason() == nil { // otherwise lostLocked may have run
		r.conn, r.state, r.held, r.began = conn, settled, true, true
		return true
	}
	r.conn = nil
	c.queueLocked(r)
	c.dialLocked()
	return true
}

// queueLocked lets the current connection send the next request of a record.
func (c *Connector) queueLocked(r *record) {
	r.state, r.failure = unsent, nil
	if c.feed != nil {
		c.feed.unsent = append(c.feed.unsent, r)
		c.feed.signal()
	}
}

// All returns the contents of the table that have one type.
func All[T content](c *Connector) (list []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.table {
		if of, ok := r.content.(T); ok {
			list = append(list, of)
		}
	}
	return list
}

func (r *record) isOffer() bool {
	_, ok := r.content.(*Offer)
	return ok
}

// attach makes a connection the one that sends the table. It returns false if the client was closed. Offers are sent
// last, because the owner's program may take long to decide about them.
func (c *Connector) attach(f *feed) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	for conn := range c.conns {
		if conn.reason() != nil { // its goroutine may not have handled the end yet
			c.lostLocked(conn)
		}
	}
	c.feed, c.conns[f.conn] = f, struct{}{}
	for _, r := range c.table {
		f.unsent = append(f.unsent, r)
	}
	rank := func(r *record) int {
		if r.isOffer() {
			return 1
		}
		return 0
	}
	slices.SortFunc(f.unsent, func(a, b *record) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.id, b.id)) })
	return true
}

// sendNext sends the request of the next record. It returns false if there is none, or if too many are unanswered.
func (c *Connector) sendNext(ctx context.Context, f *feed) bool {
	c.mu.Lock()
	r := c.nextLocked(f)
	if r == nil {
		c.mu.Unlock()
		return false
	}
	req, err := r.content.askLocked(f.conn)
	r.conn, r.state, r.sentID = f.conn, sent, 0
	f.countLocked(r, 1)
	c.mu.Unlock()
	if err == nil {
		err = c.send(ctx, f, r, req)
	}
	if err != nil {
		c.settle(f, r, err)
	}
	return true
}

// nextLocked removes and returns the next record to send, or nil.
func (c *Connector) nextLocked(f *feed) *record {
	for c.feed == f && len(f.unsent) > 0 && (f.open < resumeAtOnce || f.unsent[0].isOffer()) {
		r := f.unsent[0]
		f.unsent = f.unsent[1:]
		if c.table[r.id] == r && r.state == unsent {
			return r
		}
	}
	return nil
}

// countLocked adds to the number of unanswered requests.
func (f *feed) countLocked(r *record, n int) {
	if r.isOffer() {
		f.offers += n
	} else {
		f.open += n
	}
}

// send sends a request of a record. The events of destroyed objects are requested before a reference.
func (c *Connector) send(ctx context.Context, f *feed, r *record, req Request) error {
	if f.conn.sharesContext { // the server would cancel the request with ctx
		ctx = c.ctx
	}
	track := func() {}
	if req.Op == message.OpObjectRefer {
		track = f.conn.objects.track()
		if err := c.watchObjects(ctx, f.conn); err != nil {
			track()
			return err
		}
	}
	id, err := f.conn.start(ctx, req, func(frame wire.Frame, err error) error {
		defer track()
		return c.answered(f, r, req, frame, err)
	})
	if err != nil {
		track()
		return err
	}
	c.mu.Lock()
	left, why := r.left, r.ended
	if r.conn == f.conn {
		r.sentID = id
	}
	c.mu.Unlock()
	if left {
		f.conn.cancel(id, why)
	}
	return nil
}

// answered handles the answer to the request of a record, or the end of its connection. It takes ownership of the frame.
// It runs in the goroutine that reads the connection. An error ends the connection.
func (c *Connector) answered(f *feed, r *record, req Request, frame wire.Frame, err error) error {
	if err == nil && frame.Kind == wire.KindError {
		err = status.RemoteError(frame)
	}
	if err != nil {
		frame.Files.Close()
		c.settle(f, r, err)
		return nil
	}
	c.mu.Lock()
	if !c.currentLocked(f, r) {
		f.answeredLocked(r)
		c.mu.Unlock()
		if req.Late != nil {
			req.Late(frame)
		} else {
			frame.Files.Close()
		}
		return nil
	}
	defer c.mu.Unlock()
	defer frame.Files.Close()
	f.answeredLocked(r)
	more, err := r.content.acceptLocked(frame)
	switch {
	case err != nil || r.ended != nil:
		return err
	case more:
		c.queueLocked(r)
	default:
		r.state = settled
	}
	r.held, r.began = true, true
	r.changed.Notify()
	return nil
}

// currentLocked reports whether the answer on a connection still concerns the record.
func (c *Connector) currentLocked(f *feed, r *record) bool {
	return r.ended == nil && r.conn == f.conn && c.table[r.id] == r && f.conn.reason() == nil
}

// answeredLocked counts an answer and wakes the goroutine that sends.
func (f *feed) answeredLocked(r *record) {
	f.countLocked(r, -1)
	f.answers++
	f.signal()
}

// settle records that a request of a record has failed. It is sent again after a pause if the owner is unavailable, and
// on the next connection otherwise.
func (c *Connector) settle(f *feed, r *record, err error) {
	c.mu.Lock()
	f.answeredLocked(r)
	if !c.currentLocked(f, r) { // lostLocked handles the end of a connection
		c.mu.Unlock()
		return
	}
	r.state, r.failure = settled, err
	r.changed.Notify()
	again := errors.Is(err, status.ErrUnavailable)
	if again {
		f.later = append(f.later, r)
	}
	c.mu.Unlock()
	if !again {
		r.content.refused(err)
	}
}

// againLocked queues a record whose request the owner could not answer. It returns false for other records.
func (c *Connector) againLocked(r *record) bool {
	if c.table[r.id] != r || r.state != settled || !errors.Is(r.failure, status.ErrUnavailable) {
		return false
	}
	c.queueLocked(r)
	return true
}

// retry queues the records that the owner could not answer.
func (c *Connector) retry(f *feed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	later := f.later
	f.later = nil
	for _, r := range later {
		if c.feed == f && r.conn == f.conn {
			c.againLocked(r)
		}
	}
}

var errNotAnswered = fmt.Errorf("%w: the connection ended before the owner answered", status.ErrUnavailable)

// await waits until an owner has accepted a record, which the client sends on conn. It fails with the reason of the
// refusal, and with [status.ErrUnavailable] if the connection ends.
func (c *Connector) await(ctx context.Context, conn *Conn, r *record) error {
	for first := true; ; first = false {
		over := conn.reason() != nil // checked first: an answer may precede the end
		changed, err := c.check(conn, r, first)
		switch {
		case changed == nil:
			return err
		case over:
			return errNotAnswered
		}
		select {
		case <-changed:
		case <-conn.over:
		case <-ctx.Done():
			return ended.Cause(ctx)
		}
	}
}

// check returns the outcome of a record on a connection, or a channel that is closed at its next change. If again is
// set, it repeats a request that the owner could not answer.
func (c *Connector) check(conn *Conn, r *record, again bool) (changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.ended != nil:
		return nil, r.ended
	case r.began:
		return nil, nil
	case r.conn == conn && r.failure != nil && !(again && c.againLocked(r)):
		return nil, r.failure
	}
	return r.changed.Channel(), nil
}

// lostLocked detaches the records from a connection that has ended.
func (c *Connector) lostLocked(conn *Conn) {
	if c.feed != nil && c.feed.conn == conn {
		c.feed = nil
	}
	for _, r := range c.table {
		r.content.lostLocked(conn)
		if r.conn == conn {
			r.conn, r.state, r.held, r.failure = nil, unsent, false, nil
			r.changed.Notify()
		}
	}
}

// end ends a record and releases what the owner holds for it. It returns false if the record has already ended.
func (c *Connector) end(r *record, err error) bool {
	c.mu.Lock()
	conn, held := r.conn, r.held
	first := c.endLocked(r, err)
	c.mu.Unlock()
	if first && held {
		r.content.release(conn)
	}
	return first
}

// abandon ends a record whose caller has left with cause, and cancels its request if it is not answered.
func (c *Connector) abandon(r *record, cause error) {
	c.mu.Lock()
	conn, id := r.conn, r.sentID // nil if the connection or the client has ended
	unanswered := conn != nil && r.state == sent && id != 0
	r.left = true
	c.mu.Unlock()
	c.end(r, cause)
	if unanswered {
		conn.cancel(id, cause)
	}
}

// endLocked ends a record that the owner does not hold. It returns false if the record has already ended.
func (c *Connector) endLocked(r *record, err error) bool {
	if r.ended != nil {
		return false
	}
	r.ended = err
	c.removeLocked(r)
	r.content.endLocked(err)
	r.changed.Notify()
	return true
}

// removeLocked removes a record from the table. An answer that is in flight is released when it arrives.
func (c *Connector) removeLocked(r *record) {
	if c.table[r.id] == r { // otherwise it was not added
		delete(c.table, r.id)
	}
	r.conn, r.held = nil, false
}
