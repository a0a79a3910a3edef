package endpoint

import (
	"context"
	"errors"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// waiter is a request whose answer has not come.
type waiter struct {
	answer  chan wire.Frame // closed without a frame when the link ends
	late    func(wire.Frame)
	returns bool
	gone    bool                    // nobody waits any more
	done    func(wire.Frame, error) // gets the answer, or the end of the link, instead of the channel; nil for most
}

// spareWaiters is how many waiters a link keeps for its next requests.
const spareWaiters = 64

// free keeps a waiter, whose answer has been taken or will not come, for another request.
func (l *link) free(w *waiter) {
	w.late, w.returns = nil, false
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.spare) < spareWaiters {
		l.spare = append(l.spare, w)
	}
}

// waiterLocked is a waiter for a new request.
func (l *link) waiterLocked() *waiter {
	if n := len(l.spare); n > 0 {
		w := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return w
	}
	return &waiter{answer: make(chan wire.Frame, 1)}
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
		return l.answered(ctx, id, w, frame, ok)
	}
	if l.abandon(id, w) {
		l.cancel(id, context.Cause(ctx))
		return 0, wire.Frame{}, err
	}
	frame, ok = <-w.answer // it came at the same moment: the answer is the better news
	return l.answered(ctx, id, w, frame, ok)
}

// maxReason is how many bytes of the reason for a cancel cross.
const maxReason = 256

// cancel tells the owner to stop a request, and why. That somebody cancelled goes without saying.
func (l *link) cancel(id uint64, cause error) {
	var body []byte
	if cause != nil && cause != context.Canceled {
		if text, err := message.Marshal(message.Cancel{Reason: message.CutText(tellable(cause).Message, maxReason)}); err == nil {
			body = text
		}
	}
	l.post(wire.KindCancel, id, body)
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
			l.free(w)
		} else if frame, ok := <-w.answer; ok { // to what was not sent: the link has failed since, or will
			frame.Files.Close()
		}
		return 0, nil, l.sendError(ctx, err)
	}
	return id, w, nil
}

// answered turns what a waiter got into a result, and keeps the waiter for another request.
func (l *link) answered(ctx context.Context, id uint64, w *waiter, frame wire.Frame, ok bool) (uint64, wire.Frame, error) {
	if !ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		return 0, wire.Frame{}, l.err
	}
	l.free(w)
	if frame.Kind == wire.KindError {
		defer frame.Files.Close()
		l.ignore(id)
		if l.lendsContext && ctx.Err() != nil { // what the server's side of it came to is not told by a code
			return 0, wire.Frame{}, context.Cause(ctx)
		}
		return 0, wire.Frame{}, status.RemoteError(frame)
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
		return 0, &unasked{l.err}
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
		return 0, nil, &unasked{l.err}
	}
	l.lastID++
	w := l.waiterLocked()
	w.late, w.returns, w.gone = c.late, c.returns, false
	l.pending[l.lastID] = w
	l.listenLocked(l.lastID, c)
	return l.lastID, w, nil
}

// abandon notes that nobody waits for the answer any more. It is false when the answer, or the end, is there already.
func (l *link) abandon(id uint64, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[id] != w { // the request succeeds, and its events with it
		return false
	}
	delete(l.events, id)
	w.gone = true
	return true
}

// ignore ends the events of a request.
func (l *link) ignore(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.events, id)
}

// unasked is the end of a link before a request was sent on it. The same can be asked on the next one.
type unasked struct{ error }

func (u *unasked) Unwrap() error { return u.error }

func isUnasked(err error) bool {
	if err == nil {
		return false // what follows allocates, and most calls come here
	}
	var u *unasked
	return errors.As(err, &u)
}
