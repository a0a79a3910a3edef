package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/bufpool"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Request is a request that a client sends.
type Request struct {
	Op    message.Op // the operation
	Body  any        // nil for none
	Files []*os.File // borrowed until it has been sent
	// Storages replace Files for an owner in this process. They are borrowed until the request has been sent.
	Storages []*tensor.Storage
	// Event receives the events of the request until Ignore is called. It runs in the goroutine that reads the
	// connection, must return at once, and may run before RoundTrip returns the answer.
	Event func(message.Event)
	// Item receives the frames of events that are not events of the catalog, like Event. It takes ownership of the
	// frame. An error ends the link.
	Item func(wire.Frame) error
	// Late handles an answer that arrives after the caller has left. It takes ownership of the frame and runs in the
	// goroutine that reads the connection. If it is nil, the frame is closed.
	Late func(wire.Frame)
	// Returns is set if the answer may contain a reference to a managed object. If the answer arrives late, the
	// reference is released.
	Returns bool

	// Metadata is sent with the request. The caller has validated it.
	Metadata message.Metadata

	// Callee is the body if Calls is set; Body is then unused. Plain is the argument unless Callee already contains it
	// in encoded form.
	Calls  bool
	Callee message.Call
	Plain  any
}

// sendCall sends a request and its descriptors or storages, like [wire.Conn.SendContext].
func (l *Link) sendCall(ctx context.Context, id uint64, body []byte, c *Request) error {
	if p, ok := l.conn.(*inproc.Pipe); ok {
		if !l.sharesContext {
			ctx = nil
		} else {
			inproc.CallsBack(ctx)
		}
		return p.SendStorages(wire.Frame{Kind: wire.KindRequest, ID: id, Body: body, Context: ctx}, c.Storages)
	}
	return l.conn.SendContext(ctx, wire.KindRequest, id, body, c.Files...)
}

// Share exports the storages of a request. For a call it reuses memory that the owner keeps mapped. It borrows the
// storages.
func (l *Link) Share(c *Request, storages []*tensor.Storage) (*transfer.Export, error) {
	if _, ok := l.conn.(*inproc.Pipe); ok {
		return transfer.ExportInProcess(storages)
	}
	if l.Keeps && c.Op == message.OpCall {
		return l.Known.Share(storages)
	}
	return transfer.ExportStorages(storages)
}

// appendTo encodes the body of the request's frame, including the time left until ctx's deadline.
func (c *Request) appendTo(b []byte, ctx context.Context) ([]byte, error) {
	req := message.Request{Op: c.Op, Metadata: c.Metadata}
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout = timeLeft(deadline)
	}
	if c.Calls {
		return c.appendCall(b, req)
	}
	if c.Body != nil {
		body, err := message.MarshalPayload(c.Body)
		if err != nil {
			return b, err
		}
		req.Body = body
	}
	return message.AppendRequest(b, req), nil
}

// appendCall is appendTo for a call.
func (c *Request) appendCall(b []byte, req message.Request) ([]byte, error) {
	if c.Plain == nil {
		return message.AppendCallRequest(b, req, c.Callee)
	}
	args := bufpool.Bodies.Get()
	defer bufpool.Bodies.Put(args)
	var err error
	if *args, err = codec.AppendPlain(*args, c.Plain); err != nil {
		return b, fmt.Errorf("argument: %w", codec.Unencodable(err))
	}
	callee := c.Callee
	callee.Args = *args
	return message.AppendCallRequest(b, req, callee)
}

// DecodeAnswer decodes the body of a response or an item. It fails with ErrProtocol if the body does not match.
func DecodeAnswer(frame wire.Frame, out any) error {
	if err := message.UnmarshalPayload(frame.Body, out); err != nil {
		return BadAnswer(err)
	}
	return nil
}

// BadAnswer wraps err in ErrProtocol: the owner sent an invalid answer.
func BadAnswer(err error) error { return fmt.Errorf("%w: answer: %w", status.ErrProtocol, err) }

// BadClaim wraps the error of importing memory from an answer. It adds ErrProtocol if the owner's description is wrong,
// but not if this process cannot import the memory.
func BadClaim(err error) error {
	if errors.Is(err, status.ErrProtocol) || errors.Is(err, status.ErrCapability) {
		return err
	}
	for _, claim := range []error{status.ErrInvalid, driver.ErrHandle, message.ErrManifest, message.ErrEncoding} {
		if errors.Is(err, claim) {
			return BadAnswer(err)
		}
	}
	return err
}

// timeLeft returns the time until the deadline, at least one nanosecond because 0 would mean no deadline.
func timeLeft(deadline time.Time) time.Duration { return max(time.Until(deadline), 1) }
