package client

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// RoundTrip sends a request and waits for its answer, which the caller owns. If ctx ends first, it sends a cancellation
// to the owner. It returns the request's id, or 0 if no events need to be ignored.
//
// The end of ctx also ends the send if the owner does not read. If the frame was sent in part, the rest and the
// cancellation are sent in the background so that other users can continue to use the connection.
func (c *Conn) RoundTrip(ctx context.Context, req Request) (uint64, wire.Frame, error) {
	if ctx.Err() != nil {
		return 0, wire.Frame{}, ended.Cause(ctx)
	}
	id, w, err := c.ask(ctx, &req)
	if err != nil {
		return 0, wire.Frame{}, err
	}
	frame, ok, err := c.receiver.Wait(ctx, w.answer)
	if err == nil {
		return c.answered(ctx, id, w, frame, ok)
	}
	if c.abandon(id, w) {
		c.cancel(id, ended.Cause(ctx))
		return 0, wire.Frame{}, err
	}
	frame, ok = <-w.answer // the answer arrived at the same time and takes precedence
	return c.answered(ctx, id, w, frame, ok)
}

// request sends a request and decodes the answer into out unless out is nil.
func (c *Conn) request(ctx context.Context, req Request, out any) error {
	_, frame, err := c.RoundTrip(ctx, req)
	if err != nil {
		return err
	}
	defer frame.Files.Close()
	if out == nil {
		return nil
	}
	return decodeAnswer(frame, out)
}

// cancel asks the owner to cancel a request and includes the cause, unless it is context.Canceled.
func (c *Conn) cancel(id uint64, cause error) {
	var body []byte
	if cause != nil && cause != context.Canceled {
		if text, err := message.MarshalShown(message.Cancel{Reason: message.CutText(status.EncodeSafely(cause).Message, status.MaxReasonBytes)}); err == nil {
			body = text
		}
	}
	c.post(wire.KindCancel, id, body)
}

// ask sends a request and returns its waiter.
func (c *Conn) ask(ctx context.Context, req *Request) (uint64, *waiter, error) {
	payload := transport.Bodies.Get()
	defer transport.Bodies.Put(payload)
	back := c.withSlabs(req)
	start, err := len(*payload), error(nil)
	if *payload, err = req.appendTo(*payload, ctx); err == nil && !back.Empty() && len(*payload) > plainBody {
		c.withoutSlabs(req, back)
		back = transfer.SlabReturns{}
		*payload, err = req.appendTo((*payload)[:start], ctx)
	}
	if err != nil {
		c.slabs.RestoreReturns(back)
		return 0, nil, err
	}
	id, w, err := c.expect(req)
	if err != nil {
		c.slabs.RestoreReturns(back)
		return 0, nil, err
	}
	if err := c.sendCall(ctx, id, *payload, req); err != nil {
		c.slabs.RestoreReturns(back)
		if c.withdraw(id) {
			c.free(w)
		} else if frame, ok := <-w.answer; ok { // the request was not sent: the connection has failed or is about to fail
			frame.Files.Close()
		}
		return 0, nil, c.sendError(ctx, err)
	}
	return id, w, nil
}

// answered converts the outcome of a waiter to a result and recycles the waiter.
func (c *Conn) answered(ctx context.Context, id uint64, w *waiter, frame wire.Frame, ok bool) (uint64, wire.Frame, error) {
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		return 0, wire.Frame{}, c.err
	}
	c.free(w)
	if frame.Kind == wire.KindError {
		defer frame.Files.Close()
		c.ignore(id)
		if c.sharesContext && ctx.Err() != nil { // the error of the shared context is more precise than the server's code
			return 0, wire.Frame{}, ended.Cause(ctx)
		}
		return 0, wire.Frame{}, notRun(status.RemoteError(frame))
	}
	return id, frame, nil
}

// sendNoReply queues a request whose answer is ignored, and returns at once.
func (c *Conn) sendNoReply(req Request) {
	payload := transport.Bodies.Get()
	defer transport.Bodies.Put(payload)
	var err error
	if *payload, err = req.appendTo(*payload, context.Background()); err != nil {
		return // unreachable: the bodies of these requests can always be encoded
	}
	// If the connection has ended, its end has already released what the request would release.
	if id, err := c.expectAsync(req, closeFrame); err == nil {
		c.post(wire.KindRequest, id, *payload)
	}
}

// closeFrame receives an answer that is not needed.
func closeFrame(frame wire.Frame, _ error) error {
	frame.Files.Close()
	return nil
}

// start sends a request and returns. The answer, or the error that ends the connection, is passed to done once, in the
// goroutine that reads the connection. An error of done ends the connection. If start fails, done is not called. The request carries the time left until
// ctx's deadline. The end of ctx ends the send, not the request.
func (c *Conn) start(ctx context.Context, req Request, done func(wire.Frame, error) error) (uint64, error) {
	payload := transport.Bodies.Get()
	defer transport.Bodies.Put(payload)
	var err error
	if *payload, err = req.appendTo(*payload, ctx); err != nil {
		return 0, err
	}
	id, err := c.expectAsync(req, done)
	if err != nil {
		return 0, err
	}
	if err := c.sendCall(ctx, id, *payload, &req); err != nil {
		if !c.withdraw(id) {
			return id, nil // done was called or will be
		}
		return 0, c.sendError(ctx, err)
	}
	return id, nil
}

// sendCall sends a request and its descriptors or storages, like [wire.Conn.SendContext].
func (c *Conn) sendCall(ctx context.Context, id uint64, body []byte, req *Request) error {
	if p, ok := c.transport.(*transport.Pipe); ok {
		if !c.sharesContext {
			ctx = nil
		} else {
			transport.CallsBack(ctx)
		}
		return p.SendStorages(wire.Frame{Kind: wire.KindRequest, ID: id, Body: body, Context: ctx}, req.Storages)
	}
	return c.transport.SendContext(ctx, wire.KindRequest, id, body, req.Files...)
}

// share exports the storages of a request. For a call it reuses memory that the owner keeps mapped. It borrows the
// storages.
func (c *Conn) share(req *Request, storages []*tensor.Storage) (*transfer.Export, error) {
	if _, ok := c.transport.(*transport.Pipe); ok {
		return transfer.ExportInProcess(storages)
	}
	if c.keeps && req.Op == message.OpCall {
		return c.known.Share(storages)
	}
	return transfer.ExportStorages(storages)
}

// appendTo encodes the body of the request's frame, including the time left until ctx's deadline.
func (r *Request) appendTo(b []byte, ctx context.Context) ([]byte, error) {
	req := message.Request{Op: r.Op, Metadata: r.Metadata}
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout = timeLeft(deadline)
	}
	if r.Calls {
		return r.appendCall(b, req)
	}
	if r.Body != nil {
		body, err := message.MarshalPayload(r.Body)
		if err != nil { // a text that is not UTF-8, such as a name
			return b, status.WithClass(status.ErrInvalid, err)
		}
		req.Body = body
	}
	return message.AppendRequest(b, req), nil
}

// appendCall is appendTo for a call.
func (r *Request) appendCall(b []byte, req message.Request) ([]byte, error) {
	if !utf8.ValidString(r.Callee.Label) {
		return b, fmt.Errorf("%w: the task's label %s is not UTF-8", status.ErrInvalid, status.Shown(r.Callee.Label))
	}
	if !utf8.ValidString(r.Callee.Endpoint) {
		return b, fmt.Errorf("%w: the endpoint's name %s is not UTF-8", status.ErrInvalid, status.Shown(r.Callee.Endpoint))
	}
	if r.Plain == nil {
		return message.AppendCallRequest(b, req, r.Callee)
	}
	args := transport.Bodies.Get()
	defer transport.Bodies.Put(args)
	var err error
	if *args, err = codec.AppendPlain(*args, r.Plain); err != nil {
		return b, fmt.Errorf("argument: %w", codec.Unencodable(err))
	}
	callee := r.Callee
	callee.Args = *args
	return message.AppendCallRequest(b, req, callee)
}

// decodeAnswer decodes the body of a response or an item. It fails with ErrProtocol if the body does not match.
func decodeAnswer(frame wire.Frame, out any) error {
	if err := message.UnmarshalPayload(frame.Body, out); err != nil {
		return badAnswer(err)
	}
	return nil
}

// badAnswer wraps err in ErrProtocol: the owner sent an invalid answer.
func badAnswer(err error) error { return fmt.Errorf("%w: answer: %w", status.ErrProtocol, err) }

// badClaim wraps the error of importing memory from an answer. It adds ErrProtocol if the owner's description is wrong,
// but not if this process cannot import the memory.
func badClaim(err error) error {
	if errors.Is(err, status.ErrProtocol) || errors.Is(err, status.ErrCapability) {
		return err
	}
	for _, claim := range []error{status.ErrInvalid, driver.ErrHandle, message.ErrManifest, message.ErrEncoding} {
		if errors.Is(err, claim) {
			return badAnswer(err)
		}
	}
	return err
}

// timeLeft returns the time until the deadline, at least one nanosecond because 0 would mean no deadline.
func timeLeft(deadline time.Time) time.Duration { return max(time.Until(deadline), 1) }
