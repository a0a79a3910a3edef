package endpoint

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// fetch fetches a value and decodes it into out. The reference that may come with it goes back.
func (c *Client) fetch(ctx context.Context, f fetch, out any) error {
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		got, err := c.fetchOn(ctx, l, f, out)
		if link.IsUnasked(err) {
			continue
		}
		if err == nil && got.Object != nil {
			l.ReleaseObject(got.Object.ID, got.Object.Token)
		}
		return err
	}
}

// fetchOn is fetch on a certain connection.
func (c *Client) fetchOn(ctx context.Context, l *link.Link, f fetch, out any) (message.Returned, error) {
	if f.task == "" {
		return c.callOn(ctx, l, f, out)
	}
	ask := link.Request{Op: message.OpTaskResult, Body: message.Task{ID: f.task}, Returns: true}
	_, frame, err := l.RoundTrip(ctx, ask)
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return c.takeResult(l, frame, out)
}

// hold is fetch that keeps the reference; nil where none comes.
func (c *Client) hold(ctx context.Context, f fetch, out any) (ref *reference, err error) {
	err = c.onLink(ctx, func(l *link.Link) (err error) {
		ref, err = c.holdOn(ctx, l, f, out)
		return err
	})
	return ref, err
}

// holdOn is hold on a certain connection.
func (c *Client) holdOn(ctx context.Context, l *link.Link, f fetch, out any) (*reference, error) {
	defer l.ObjectEvents.Expect()()
	if err := c.watchObjects(ctx, l); err != nil {
		return nil, err
	}
	got, err := c.fetchOn(ctx, l, f, out)
	if err != nil || got.Object == nil {
		return nil, err
	}
	return c.keepReference(l, got.Object), nil
}

// ask makes a request with the argument of a call, whose answer has no memory, and decodes that into out.
func (c *Client) ask(ctx context.Context, op message.Op, f fetch, out any) error {
	return c.onLink(ctx, func(l *link.Link) error { return c.askOn(ctx, l, op, f, out) })
}

// askOn is ask on a certain connection.
func (c *Client) askOn(ctx context.Context, l *link.Link, op message.Op, f fetch, out any) error {
	ask, err := c.newCall(l, op, f)
	if err != nil {
		return err
	}
	defer ask.close()
	if op == message.OpSubmit {
		ask.Late = l.CancelTask
	}
	_, frame, err := l.RoundTrip(ctx, ask.Request)
	if err != nil {
		return err
	}
	defer frame.Files.Close()
	return link.DecodeAnswer(frame, out)
}

func (c *Client) callOn(ctx context.Context, l *link.Link, f fetch, out any) (message.Returned, error) {
	l.Slabs.Expect()
	defer l.Slabs.Looked()
	frame, again, err := c.roundTrip(ctx, l, f)
	if again { // the function did not run; now all memory goes along
		frame, _, err = c.roundTrip(ctx, l, f)
	}
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return c.takeResult(l, frame, out)
}

// roundTrip makes a call, and notes what its answer says of the memory that the owner keeps. again is true where the
// call was refused because memory is not kept that it named. The caller closes the frame.
func (c *Client) roundTrip(ctx context.Context, l *link.Link, f fetch) (frame wire.Frame, again bool, err error) {
	ask, err := c.newCall(l, message.OpCall, f)
	if err != nil {
		return wire.Frame{}, false, err
	}
	defer ask.close()
	ask.Returns = true
	_, frame, err = l.RoundTrip(ctx, ask.Request)
	switch {
	case !l.Keeps || len(ask.Callee.Handles) == 0:
	case err == nil:
		l.Known.Answered(ask.Callee.Handles)
	case errors.Is(err, status.ErrNotKept):
		again = l.Known.Missed(ask.Callee.Handles)
	}
	return frame, again, err
}

// importer maps what the owner sends.
func (c *Client) importer() transfer.Importer {
	return transfer.Importer{Devices: c.devices, Socket: c.opts.Socket}
}

// outgoing is a call with the memory that goes with it.
type outgoing struct {
	link.Request
	shared *transfer.Export
	load   codec.Payload
}

func (o *outgoing) close() {
	if o.shared != nil {
		o.shared.Close()
	}
	o.load.Close()
}

// newCall encodes a call to be made on l. The caller closes it when it has been sent.
func (c *Client) newCall(l *link.Link, op message.Op, f fetch) (o outgoing, err error) {
	o.Op, o.Calls, o.Callee.Endpoint, o.Metadata = op, true, f.name, f.with
	in := f.in
	if in == nil {
		return o, nil
	}
	if !codec.MayHoldTensors(reflect.TypeOf(in)) {
		o.Plain = in
		return o, nil
	}
	if o.load, err = codec.EncodePayload(in); err != nil {
		return outgoing{}, fmt.Errorf("argument: %w", err)
	}
	o.Callee.Args = o.load.Value
	if len(o.load.Storages) > 0 {
		if o.shared, err = l.Share(&o.Request, o.load.Storages); err != nil {
			o.load.Close()
			return outgoing{}, fmt.Errorf("share the argument: %w", err)
		}
		o.shared.Claim(o.load.Storages, c.opts.Socket)
		o.Callee.Handles, o.Files, o.Storages = o.shared.Handles, o.shared.Files, o.shared.Storages
	}
	return o, nil
}

// takeResult decodes the answer to a call into out. It borrows the frame.
func (c *Client) takeResult(l *link.Link, frame wire.Frame, out any) (message.Returned, error) {
	got, err := message.ParseReturned(frame.Body)
	if err != nil {
		return got, link.BadAnswer(err)
	}
	im := c.importer()
	im.Slabs = &l.Slabs
	if err := decodeValue(im, got.Value, got.Handles, frame.Files, out); err != nil {
		if got.Object != nil {
			l.ReleaseObject(got.Object.ID, got.Object.Token)
		}
		return got, err
	}
	return got, nil
}

// decodeValue decodes a value of the owner into out, which may be nil.
func decodeValue(im transfer.Importer, value message.RawMessage, handles []message.Handle, files *wire.Files, out any) error {
	var err error
	if out != nil {
		err = checkTarget(out)
	}
	if out == nil || err != nil || len(value) == 0 {
		if im.Slabs != nil && len(handles) > 0 {
			im.Slabs.Refuse(handles)
		}
		return err
	}
	storages, err := im.Storages(handles, files)
	if err != nil {
		return fmt.Errorf("result: %w", link.BadClaim(err))
	}
	defer transfer.CloseStorages(storages) // what is made has references of its own
	if _, err := codec.DecodePayload(value, storages, out, false); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// checkTarget refuses what no result can be decoded into.
func checkTarget(out any) error {
	if v := reflect.ValueOf(out); v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("%w: the result needs a pointer, not a %T", status.ErrInvalid, out)
	}
	return nil
}
