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

// Request is a request to be sent.
type Request struct {
	Op    message.Op // what is asked for
	Body  any        // nil for none
	Files []*os.File // borrowed until it has been sent
	// Storages are shared, in the place of the files, with an owner in this process. Borrowed until it has been sent.
	Storages []*tensor.Storage
	// Event gets the events that belong to the request, until ignore. It is called by whoever reads, must return at
	// once, and may be called before the answer is seen.
	Event func(message.Event)
	// Item is the same for requests whose events are not of the catalog. It takes the frame; an error ends the link.
	Item func(wire.Frame) error
	// Late deals with an answer that comes when nobody waits for it any more. It takes the frame, and is called by the
	// reading goroutine. Nil: the frame is closed.
	Late func(wire.Frame)
	// Returns tells that the answer may bring a reference to a managed object, which goes back if it comes late.
	Returns bool

	// Metadata goes with the request. It has been checked.
	Metadata message.Metadata

	// Callee is the body, instead of Body, where Calls. Plain is its argument, if that is not encoded in Callee yet.
	Calls  bool
	Callee message.Call
	Plain  any
}

// sendCall sends a request with what goes beside it, as [wire.Conn.SendContext] does.
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

// Share makes the storages of a request ready to be sent, those of a call by what the owner keeps of them. It borrows
// them.
func (l *Link) Share(c *Request, storages []*tensor.Storage) (*transfer.Export, error) {
	if _, ok := l.conn.(*inproc.Pipe); ok {
		return transfer.ExportInProcess(storages)
	}
	if l.Keeps && c.Op == message.OpCall {
		return l.Known.Share(storages)
	}
	return transfer.ExportStorages(storages)
}

// appendTo encodes the body of the request's frame. What is left of ctx's time goes with it.
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

// DecodeAnswer reads the body of a response or an item. A body that does not fit is the owner's fault.
func DecodeAnswer(frame wire.Frame, out any) error {
	if err := message.UnmarshalPayload(frame.Body, out); err != nil {
		return BadAnswer(err)
	}
	return nil
}

// BadAnswer is the error of an answer that does not fit: the owner broke the protocol.
func BadAnswer(err error) error { return fmt.Errorf("%w: answer: %w", status.ErrProtocol, err) }

// BadClaim says whose fault it is that memory in an answer could not be imported: what the owner says of it does not
// hold, unless it is this process that cannot have it.
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

// timeLeft is how long there is until the deadline, at least a nanosecond: 0 would mean for ever.
func timeLeft(deadline time.Time) time.Duration { return max(time.Until(deadline), 1) }
