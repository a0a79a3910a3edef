package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// link is one connection of a client, from its hello to its end. It pairs answers and events with requests; who dials again when it ends
// is the client's business.
type link struct {
	conn     connection
	receiver receiver
	server   wire.Hello

	mu      sync.Mutex
	pending map[uint64]*waiter
	events  map[uint64]func(wire.Frame) error // by the request that they belong to
	lastID  uint64
	err     error // why the link is of no use for new requests

	news   objectNews
	outbox outbox

	over chan struct{} // closed when err is set
	done chan struct{} // closed when the reading goroutine has ended
}

// waiter is a request whose answer has not come.
type waiter struct {
	answer  chan wire.Frame // closed without a frame when the link ends
	late    func(wire.Frame)
	returns bool
	gone    bool                    // nobody waits any more
	done    func(wire.Frame, error) // gets the answer, or the end of the link, instead of the channel; nil for most
}

var waiters = sync.Pool{New: func() any { return &waiter{answer: make(chan wire.Frame, 1)} }}

// free keeps a waiter, whose answer has been taken or will not come, for another request.
func (w *waiter) free() {
	w.late, w.returns = nil, false
	waiters.Put(w)
}

// call is a request to be sent.
type call struct {
	op    wire.Op
	body  any        // nil for none
	files []*os.File // borrowed until it has been sent
	// storages are lent, in the place of the files, to an owner in this process. Borrowed until it has been sent.
	storages []*tensor.Storage
	// event gets the events that belong to the request, until ignore. It is called by whoever reads, must return at once, and
	// may be called before the answer is seen.
	event func(wire.Event)
	// item is the same for requests whose events are not of the catalog. It takes the frame; an error ends the link.
	item func(wire.Frame) error
	// late deals with an answer that comes when nobody waits for it any more. It takes the frame, and is called by the reading
	// goroutine. Nil: the frame is closed.
	late func(wire.Frame)
	// returns tells that the answer may bring a reference to a managed object, which goes back if it comes late.
	returns bool

	// callee is the body, instead of body, where calls. plain is its argument, if that is not encoded in callee yet.
	calls  bool
	callee wire.Call
	plain  any
}

// newLink introduces the client on a fresh connection. It takes conn. The caller starts read.
func newLink(ctx context.Context, conn *wire.Conn, hello wire.Hello) (*link, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	agreed, err := wire.ClientHandshake(conn, hello)
	if !stop() {
		err = fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		return nil, handshakeError(err)
	}
	l := makeLink(conn, agreed.Peer)
	l.receiver = wire.NewReceiver(conn, l.dispatch)
	return l, nil
}

// makeLink is a link without its receiver.
func makeLink(conn connection, server wire.Hello) *link {
	return &link{
		conn: conn, server: server, pending: map[uint64]*waiter{}, events: map[uint64]func(wire.Frame) error{},
		over: make(chan struct{}), done: make(chan struct{}),
	}
}

// sendCall sends a request with what goes beside it, as [wire.Conn.SendContext] does.
func (l *link) sendCall(ctx context.Context, id uint64, body []byte, c *call) error {
	if p, ok := l.conn.(*pipe); ok {
		return p.lend(wire.KindRequest, id, body, c.storages)
	}
	return l.conn.SendContext(ctx, wire.KindRequest, id, body, c.files...)
}

// share makes storages ready to be sent. It borrows them.
func (l *link) share(storages []*tensor.Storage) (*export, error) {
	if _, ok := l.conn.(*pipe); ok {
		return lentExport(storages)
	}
	return exportStorages(storages)
}

// read passes frames on while nobody waits for an answer, who would do that himself, until the connection ends.
func (l *link) read() {
	defer close(l.done)
	l.fail(l.receiver.Run())
}

// dispatch hands a frame to whom it is for. It takes the frame. An error ends the link.
func (l *link) dispatch(frame wire.Frame) error {
	switch {
	case frame.Kind == wire.KindError && frame.ID == 0: // not to a request: the owner says why it hangs up
		defer frame.Files.Close()
		return remoteError(frame)
	case frame.Kind == wire.KindResponse || frame.Kind == wire.KindError:
		return l.deliver(frame)
	case frame.Kind == wire.KindEvent:
		return l.pass(frame)
	case frame.Kind == wire.KindGoodbye:
		defer frame.Files.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.endLocked(errOwnerLeft)
		return l.overLocked()
	}
	frame.Files.Close()
	return fmt.Errorf("%w: an owner does not send %s frames", ErrProtocol, frame.Kind)
}

// deliver gives an answer to the request that waits for it.
func (l *link) deliver(frame wire.Frame) error {
	l.mu.Lock()
	w := l.pending[frame.ID]
	delete(l.pending, frame.ID)
	if w == nil {
		l.mu.Unlock()
		frame.Files.Close()
		return fmt.Errorf("%w: answer to request %d, which was not sent or was answered before", ErrProtocol, frame.ID)
	}
	over := l.overLocked()
	if !w.gone {
		w.answer <- frame // has room: a waiter gets one answer
		l.mu.Unlock()
		return over
	}
	l.mu.Unlock()
	switch {
	case w.done != nil:
		w.done(frame, nil)
	case w.late != nil:
		w.late(frame)
	case w.returns:
		l.dropResult(frame)
	default:
		frame.Files.Close()
	}
	return over
}

// overLocked ends a link whose owner has said goodbye and owes no answer any more.
func (l *link) overLocked() error {
	if l.err != nil && len(l.pending) == 0 {
		return l.err
	}
	return nil
}

// pass gives an event to the request that it belongs to. It takes the frame. One that comes after ignore was on its way already.
func (l *link) pass(frame wire.Frame) error {
	l.mu.Lock()
	item := l.events[frame.ID]
	l.mu.Unlock()
	if item == nil {
		frame.Files.Close()
		return nil
	}
	return item(frame)
}

// asItem makes a taker of frames of one of events.
func asItem(event func(wire.Event)) func(wire.Frame) error {
	return func(frame wire.Frame) error {
		defer frame.Files.Close()
		var e wire.Event
		if err := wire.Unmarshal(frame.Body, &e); err != nil {
			return fmt.Errorf("%w: event: %w", ErrProtocol, err)
		}
		if len(e.Name) > catalog.MaxNameBytes { // nor would it be kept
			return fmt.Errorf("%w: event of a name of %d bytes", ErrProtocol, len(e.Name))
		}
		event(e)
		return nil
	}
}

// roundTrip sends a request and waits for its answer, which the caller owns. When ctx ends first the owner is told to stop. The id
// is the request's, 0 if there is nothing to ignore.
//
// The end of ctx ends the sending too, where the owner does not read. Of a request that has begun by then the rest is sent behind the
// caller's back, and the word to stop after it: the connection goes on, for the others who use it.
func (l *link) roundTrip(ctx context.Context, c call) (uint64, wire.Frame, error) {
	if ctx.Err() != nil {
		return 0, wire.Frame{}, context.Cause(ctx)
	}
	id, w, err := l.ask(ctx, &c)
	if err != nil {
		return 0, wire.Frame{}, err
	}
	frame, ok, err := l.receiver.Wait(ctx, w.answer)
	if err == nil {
		return l.answered(id, w, frame, ok)
	}
	if l.abandon(id, w) {
		l.post(wire.KindCancel, id, nil)
		return 0, wire.Frame{}, err
	}
	frame, ok = <-w.answer // it came at the same moment: the answer is the better news
	return l.answered(id, w, frame, ok)
}

// ask sends a request.
func (l *link) ask(ctx context.Context, c *call) (uint64, *waiter, error) {
	payload := bodies.get()
	defer bodies.put(payload)
	var err error
	if *payload, err = c.appendTo(*payload, ctx); err != nil {
		return 0, nil, err
	}
	id, w, err := l.expect(c)
	if err != nil {
		return 0, nil, err
	}
	if err := l.sendCall(ctx, id, *payload, c); err != nil {
		if l.withdraw(id) {
			w.free()
		} else if frame, ok := <-w.answer; ok { // to what was not sent: the link has failed since, or will
			frame.Files.Close()
		}
		return 0, nil, l.sendError(ctx, err)
	}
	return id, w, nil
}

// answered turns what a waiter got into a result, and keeps the waiter for another request.
func (l *link) answered(id uint64, w *waiter, frame wire.Frame, ok bool) (uint64, wire.Frame, error) {
	if !ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		return 0, wire.Frame{}, l.err
	}
	w.free()
	if frame.Kind == wire.KindError {
		defer frame.Files.Close()
		l.ignore(id)
		return 0, wire.Frame{}, remoteError(frame)
	}
	return id, frame, nil
}

// tell sends a request whose answer nobody waits for, without waiting itself.
func (l *link) tell(c call) {
	payload := bodies.get()
	defer bodies.put(payload)
	var err error
	if *payload, err = c.appendTo(*payload, context.Background()); err != nil {
		return // none of those that are told has a body that cannot be encoded
	}
	// Where the link has ended, what the request would have undone has ended with it.
	if id, err := l.expectAsync(c, func(frame wire.Frame, _ error) { frame.Files.Close() }); err == nil {
		l.post(wire.KindRequest, id, *payload)
	}
}

// start sends a request whose answer, or the error that ends the link before it, goes to done: once, by whoever reads. On an error
// done is not called. What is left of ctx's time goes with the request; its end ends the sending, not the request.
func (l *link) start(ctx context.Context, c call, done func(wire.Frame, error)) (uint64, error) {
	payload := bodies.get()
	defer bodies.put(payload)
	var err error
	if *payload, err = c.appendTo(*payload, ctx); err != nil {
		return 0, err
	}
	id, err := l.expectAsync(c, done)
	if err != nil {
		return 0, err
	}
	if err := l.sendCall(ctx, id, *payload, &c); err != nil {
		if !l.withdraw(id) {
			return id, nil // done has been told, or will be
		}
		return 0, l.sendError(ctx, err)
	}
	return id, nil
}

// expectAsync registers a request whose answer goes to done.
func (l *link) expectAsync(c call, done func(wire.Frame, error)) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	l.lastID++
	l.pending[l.lastID] = &waiter{gone: true, done: done}
	l.listenLocked(l.lastID, &c)
	return l.lastID, nil
}

// withdraw forgets a request that was not sent. It is false when somebody has dealt with it already.
func (l *link) withdraw(id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waiting := l.pending[id]
	delete(l.pending, id)
	delete(l.events, id)
	return waiting
}

// listenLocked notes who gets the events of a request.
func (l *link) listenLocked(id uint64, c *call) {
	switch {
	case c.item != nil:
		l.events[id] = c.item
	case c.event != nil:
		l.events[id] = asItem(c.event)
	}
}

// expect registers a waiter under a new request id.
func (l *link) expect(c *call) (uint64, *waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, nil, l.err
	}
	l.lastID++
	w := waiters.Get().(*waiter)
	w.late, w.returns, w.gone = c.late, c.returns, false
	l.pending[l.lastID] = w
	l.listenLocked(l.lastID, c)
	return l.lastID, w, nil
}

// abandon notes that nobody waits for the answer any more. It is false when the answer, or the end, is there already.
func (l *link) abandon(id uint64, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.events, id)
	if l.pending[id] != w {
		return false
	}
	w.gone = true
	return true
}

// ignore ends the events of a request.
func (l *link) ignore(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.events, id)
}

// appendTo encodes the body of the request's frame. What is left of ctx's time goes with it.
func (c *call) appendTo(b []byte, ctx context.Context) ([]byte, error) {
	req := wire.Request{Op: c.op}
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout = timeLeft(deadline)
	}
	if c.calls {
		return c.appendCall(b, req)
	}
	if c.body != nil {
		body, err := wire.MarshalPayload(c.body)
		if err != nil {
			return b, err
		}
		req.Body = body
	}
	return wire.AppendRequest(b, req), nil
}

// appendCall is appendTo for a call.
func (c *call) appendCall(b []byte, req wire.Request) ([]byte, error) {
	if c.plain == nil {
		return wire.AppendCallRequest(b, req, c.callee)
	}
	args := bodies.get()
	defer bodies.put(args)
	var err error
	if *args, err = appendPlain(*args, c.plain); err != nil {
		return b, fmt.Errorf("argument: %w", uncrossable(err))
	}
	callee := c.callee
	callee.Args = *args
	return wire.AppendCallRequest(b, req, callee)
}

// decodeAnswer reads the body of a response or an item. A body that does not fit is the owner's fault.
func decodeAnswer(frame wire.Frame, out any) error {
	if err := wire.UnmarshalPayload(frame.Body, out); err != nil {
		return badAnswer(err)
	}
	return nil
}

func badAnswer(err error) error { return fmt.Errorf("%w: answer: %w", ErrProtocol, err) }

// untrue says whose fault it is that memory in an answer could not be imported: what the owner says of it does not hold, unless it is
// this process that cannot have it.
func untrue(err error) error {
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrCapability) {
		return err
	}
	for _, claim := range []error{ErrInvalid, driver.ErrHandle, wire.ErrManifest, wire.ErrEncoding} {
		if errors.Is(err, claim) {
			return badAnswer(err)
		}
	}
	return err
}
