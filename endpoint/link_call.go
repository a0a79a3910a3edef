package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// call is a request to be sent.
type call struct {
	op    message.Op
	body  any        // nil for none
	files []*os.File // borrowed until it has been sent
	// storages are lent, in the place of the files, to an owner in this process. Borrowed until it has been sent.
	storages []*tensor.Storage
	// event gets the events that belong to the request, until ignore. It is called by whoever reads, must return at once, and
	// may be called before the answer is seen.
	event func(message.Event)
	// item is the same for requests whose events are not of the catalog. It takes the frame; an error ends the link.
	item func(wire.Frame) error
	// late deals with an answer that comes when nobody waits for it any more. It takes the frame, and is called by the reading
	// goroutine. Nil: the frame is closed.
	late func(wire.Frame)
	// returns tells that the answer may bring a reference to a managed object, which goes back if it comes late.
	returns bool

	// callee is the body, instead of body, where calls. plain is its argument, if that is not encoded in callee yet.
	calls  bool
	callee message.Call
	plain  any
}

// sendCall sends a request with what goes beside it, as [wire.Conn.SendContext] does.
func (l *link) sendCall(ctx context.Context, id uint64, body []byte, c *call) error {
	if p, ok := l.conn.(*inproc.Pipe); ok {
		if !l.lendsContext {
			ctx = nil
		} else {
			callsBack(ctx)
		}
		return p.Lend(wire.Frame{Kind: wire.KindRequest, ID: id, Body: body, Context: ctx}, c.storages)
	}
	return l.conn.SendContext(ctx, wire.KindRequest, id, body, c.files...)
}

// share makes the storages of a request ready to be sent, those of a call by what the owner keeps of them. It borrows them.
func (l *link) share(c *call, storages []*tensor.Storage) (*transfer.Export, error) {
	if _, ok := l.conn.(*inproc.Pipe); ok {
		return transfer.ExportLent(storages)
	}
	if l.keeps && c.op == message.OpCall {
		return l.known.Share(storages, c.callee.Endpoint)
	}
	return transfer.ExportStorages(storages)
}

// appendTo encodes the body of the request's frame. What is left of ctx's time goes with it.
func (c *call) appendTo(b []byte, ctx context.Context) ([]byte, error) {
	req := message.Request{Op: c.op}
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout = timeLeft(deadline)
	}
	if c.calls {
		return c.appendCall(b, req)
	}
	if c.body != nil {
		body, err := message.MarshalPayload(c.body)
		if err != nil {
			return b, err
		}
		req.Body = body
	}
	return message.AppendRequest(b, req), nil
}

// appendCall is appendTo for a call.
func (c *call) appendCall(b []byte, req message.Request) ([]byte, error) {
	if c.plain == nil {
		return message.AppendCallRequest(b, req, c.callee)
	}
	args := bodies.get()
	defer bodies.put(args)
	var err error
	if *args, err = codec.AppendPlain(*args, c.plain); err != nil {
		return b, fmt.Errorf("argument: %w", codec.Unencodable(err))
	}
	callee := c.callee
	callee.Args = *args
	return message.AppendCallRequest(b, req, callee)
}

// decodeAnswer reads the body of a response or an item. A body that does not fit is the owner's fault.
func decodeAnswer(frame wire.Frame, out any) error {
	if err := message.UnmarshalPayload(frame.Body, out); err != nil {
		return badAnswer(err)
	}
	return nil
}

func badAnswer(err error) error { return fmt.Errorf("%w: answer: %w", status.ErrProtocol, err) }

// untrue says whose fault it is that memory in an answer could not be imported: what the owner says of it does not hold, unless it is
// this process that cannot have it.
func untrue(err error) error {
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
