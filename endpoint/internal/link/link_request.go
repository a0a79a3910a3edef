package link

import (
	"context"
	"errors"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/bufpool"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// RoundTrip sends a request and waits for its answer, which the caller owns. When ctx ends first the owner is told to
// stop. The id is the request's, 0 if there is nothing to ignore.
//
// The end of ctx ends the sending too, where the owner does not read. Of a request that has begun by then the rest is
// sent behind the caller's back, and the word to stop after it: the connection goes on, for the others who use it.
func (l *Link) RoundTrip(ctx context.Context, c Request) (uint64, wire.Frame, error) {
	if ctx.Err() != nil {
		return 0, wire.Frame{}, context.Cause(ctx)
	}
	id, w, err := l.ask(ctx, &c)
	if err != nil {
		return 0, wire.Frame{}, err
	}
	frame, ok, err := l.Receiver.Wait(ctx, w.answer)
	if err == nil {
		return l.answered(ctx, id, w, frame, ok)
	}
	if l.abandon(id, w) {
		l.Cancel(id, context.Cause(ctx))
		return 0, wire.Frame{}, err
	}
	frame, ok = <-w.answer // it came at the same moment: the answer is the better news
	return l.answered(ctx, id, w, frame, ok)
}

// Cancel tells the owner to stop a request, and why. That somebody cancelled goes without saying.
func (l *Link) Cancel(id uint64, cause error) {
	var body []byte
	if cause != nil && cause != context.Canceled {
		if text, err := message.Marshal(message.Cancel{Reason: message.CutText(status.EncodeSafely(cause).Message, limits.ReasonBytes)}); err == nil {
			body = text
		}
	}
	l.post(wire.KindCancel, id, body)
}

// ask sends a request.
func (l *Link) ask(ctx context.Context, c *Request) (uint64, *waiter, error) {
	payload := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(payload)
	back := l.withSlabs(c)
	start, err := len(*payload), error(nil)
	if *payload, err = c.appendTo(*payload, ctx); err == nil && !back.Empty() && len(*payload) > plainBody {
		l.withoutSlabs(c, back)
		back = transfer.SlabReturns{}
		*payload, err = c.appendTo((*payload)[:start], ctx)
	}
	if err != nil {
		l.Slabs.PutBack(back)
		return 0, nil, err
	}
	id, w, err := l.expect(c)
	if err != nil {
		return 0, nil, err
	}
	if err := l.sendCall(ctx, id, *payload, c); err != nil {
		l.Slabs.PutBack(back)
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
func (l *Link) answered(ctx context.Context, id uint64, w *waiter, frame wire.Frame, ok bool) (uint64, wire.Frame, error) {
	if !ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		return 0, wire.Frame{}, l.err
	}
	l.free(w)
	if frame.Kind == wire.KindError {
		defer frame.Files.Close()
		l.Ignore(id)
		if l.sharesContext && ctx.Err() != nil { // what the server's side of it came to is not told by a code
			return 0, wire.Frame{}, context.Cause(ctx)
		}
		return 0, wire.Frame{}, status.RemoteError(frame)
	}
	return id, frame, nil
}

// Tell sends a request whose answer nobody waits for, without waiting itself.
func (l *Link) Tell(c Request) {
	payload := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(payload)
	var err error
	if *payload, err = c.appendTo(*payload, context.Background()); err != nil {
		return // none of those that are told has a body that cannot be encoded
	}
	// Where the link has ended, what the request would have undone has ended with it.
	if id, err := l.expectAsync(c, func(frame wire.Frame, _ error) { frame.Files.Close() }); err == nil {
		l.post(wire.KindRequest, id, *payload)
	}
}

// Start sends a request whose answer, or the error that ends the link before it, goes to done: once, by whoever reads.
// On an error done is not called. What is left of ctx's time goes with the request; its end ends the sending, not the
// request.
func (l *Link) Start(ctx context.Context, c Request, done func(wire.Frame, error)) (uint64, error) {
	payload := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(payload)
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

// unasked is the end of a link before a request was sent on it. The same can be asked on the next one.
type unasked struct{ error }

func (u *unasked) Unwrap() error { return u.error }

// IsUnasked reports whether err is the end of a link before a request was sent on it.
func IsUnasked(err error) bool {
	if err == nil {
		return false // what follows allocates, and most calls come here
	}
	var u *unasked
	return errors.As(err, &u)
}
