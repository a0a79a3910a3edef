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

// RoundTrip sends a request and waits for its answer, which the caller owns. If ctx ends first, it sends a cancellation
// to the owner. It returns the request's id, or 0 if no events need to be ignored.
//
// The end of ctx also ends the send if the owner does not read. If the frame was sent in part, the rest and the
// cancellation are sent in the background so that other users can continue to use the connection.
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
	frame, ok = <-w.answer // the answer arrived at the same time and takes precedence
	return l.answered(ctx, id, w, frame, ok)
}

// Cancel asks the owner to cancel a request and includes the cause, unless it is context.Canceled.
func (l *Link) Cancel(id uint64, cause error) {
	var body []byte
	if cause != nil && cause != context.Canceled {
		if text, err := message.Marshal(message.Cancel{Reason: message.CutText(status.EncodeSafely(cause).Message, limits.ReasonBytes)}); err == nil {
			body = text
		}
	}
	l.post(wire.KindCancel, id, body)
}

// ask sends a request and returns its waiter.
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
		l.Slabs.RestoreReturns(back)
		return 0, nil, err
	}
	id, w, err := l.expect(c)
	if err != nil {
		return 0, nil, err
	}
	if err := l.sendCall(ctx, id, *payload, c); err != nil {
		l.Slabs.RestoreReturns(back)
		if l.withdraw(id) {
			l.free(w)
		} else if frame, ok := <-w.answer; ok { // the request was not sent: the link has failed or is about to fail
			frame.Files.Close()
		}
		return 0, nil, l.sendError(ctx, err)
	}
	return id, w, nil
}

// answered converts the outcome of a waiter to a result and recycles the waiter.
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
		if l.sharesContext && ctx.Err() != nil { // the error of the shared context is more precise than the server's code
			return 0, wire.Frame{}, context.Cause(ctx)
		}
		return 0, wire.Frame{}, status.RemoteError(frame)
	}
	return id, frame, nil
}

// SendNoReply queues a request whose answer is ignored, and returns at once.
func (l *Link) SendNoReply(c Request) {
	payload := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(payload)
	var err error
	if *payload, err = c.appendTo(*payload, context.Background()); err != nil {
		return // unreachable: the bodies of these requests can always be encoded
	}
	// If the link has ended, its end has already released what the request would release.
	if id, err := l.expectAsync(c, func(frame wire.Frame, _ error) { frame.Files.Close() }); err == nil {
		l.post(wire.KindRequest, id, *payload)
	}
}

// Start sends a request and returns. The answer, or the error that ends the link, is passed to done once, in the
// goroutine that reads the connection. If Start fails, done is not called. The request carries the time left until
// ctx's deadline. The end of ctx ends the send, not the request.
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
			return id, nil // done was called or will be
		}
		return 0, l.sendError(ctx, err)
	}
	return id, nil
}

// notSentError wraps the error of a link that ended before the request was sent. The request can be sent on the next
// link.
type notSentError struct{ error }

func (u *notSentError) Unwrap() error { return u.error }

// IsNotSent reports whether err is due to a link that ended before the request was sent.
func IsNotSent(err error) bool {
	if err == nil {
		return false // fast path: errors.As allocates
	}
	var u *notSentError
	return errors.As(err, &u)
}
