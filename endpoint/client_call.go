package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Call calls an endpoint of the owner and decodes its result into out, a pointer, or drops it where out is nil. in is encoded by the rules of
// [Register], and borrowed; its tensors are shared in place, not copied: the owner maps the same memory for as long as the
// function runs. Tensors of the result are the caller's, who closes them; they stay valid whatever becomes of the owner.
//
// When ctx ends the function is told to stop. Errors: what the function returned, with its code; [ErrNoEndpoint]; those of Dial where the
// connection is gone. A call whose connection breaks is not repeated: the function may have run.
func (c *Client) Call(ctx context.Context, name string, in, out any) error {
	_, err := c.call(ctx, name, in, out)
	return err
}

// call is Call, and also returns what the owner said besides the value.
func (c *Client) call(ctx context.Context, name string, in, out any) (wire.Returned, error) {
	l, err := c.connected(ctx)
	if err != nil {
		return wire.Returned{}, fmt.Errorf("call %q: %w", name, err)
	}
	got, err := c.callOn(ctx, l, wire.OpCall, name, in, out)
	if err != nil {
		return got, fmt.Errorf("call %q: %w", name, err)
	}
	return got, nil
}

func (c *Client) callOn(ctx context.Context, l *link, op wire.Op, name string, in, out any) (wire.Returned, error) {
	ask, p, err := newCall(op, name, in)
	if err != nil {
		return wire.Returned{}, err
	}
	defer p.close()
	ask.late = l.dropResult
	_, frame, err := l.roundTrip(ctx, ask.call)
	if err != nil {
		return wire.Returned{}, err
	}
	defer frame.Files.Close()
	return c.takeResult(l, frame, out)
}

// outgoing is a call with the memory that goes with it.
type outgoing struct {
	call
	shared *export
	load   *payload
}

func (o *outgoing) close() {
	if o.shared != nil {
		o.shared.close()
	}
	o.load.close()
}

// newCall encodes a call. The caller closes the second result when the call has been sent.
func newCall(op wire.Op, name string, in any) (*outgoing, *outgoing, error) {
	p, err := encodePayload(in)
	if err != nil {
		return nil, nil, fmt.Errorf("argument: %w", err)
	}
	body := wire.Call{Endpoint: name}
	if in != nil {
		body.Args = p.value
	}
	o := &outgoing{call: call{op: op}, load: p}
	if len(p.storages) > 0 {
		if o.shared, err = exportStorages(p.storages); err != nil {
			p.close()
			return nil, nil, fmt.Errorf("share the argument: %w", err)
		}
		body.Handles, o.files = o.shared.handles, o.shared.files
	}
	o.body = body
	return o, o, nil
}

// takeResult decodes the answer to a call into out. It borrows the frame.
func (c *Client) takeResult(l *link, frame wire.Frame, out any) (wire.Returned, error) {
	var got wire.Returned
	if err := decodeAnswer(frame, &got); err != nil {
		return got, err
	}
	if err := c.decodeValue(got.Value, got.Handles, frame.Files, out); err != nil {
		if got.Object != nil {
			l.releaseObject(got.Object.ID)
		}
		return got, err
	}
	return got, nil
}

// decodeValue decodes a value of the owner into out, which may be nil.
func (c *Client) decodeValue(value wire.RawMessage, handles []wire.Handle, files *wire.Files, out any) error {
	if out == nil {
		return nil
	}
	if v := reflect.ValueOf(out); v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("%w: the result needs a pointer, not a %T", ErrInvalid, out)
	}
	if len(value) == 0 {
		return nil
	}
	storages, err := importStorages(c.devices, handles, files, driver.ImportOptions{})
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	defer closeStorages(storages) // what is made has references of its own
	if _, err := decodePayload(value, storages, out, false); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// dropResult gives back what came with an answer for which nobody waits any more.
func (l *link) dropResult(frame wire.Frame) {
	defer frame.Files.Close()
	var got wire.Returned
	if frame.Kind == wire.KindResponse && wire.UnmarshalPayload(frame.Body, &got) == nil && got.Object != nil {
		l.releaseObject(got.Object.ID)
	}
}

// releaseObject gives a reference back without waiting for the answer.
func (l *link) releaseObject(id string) {
	l.send(call{op: wire.OpObjectRelease, body: wire.ReleaseObjects{IDs: []string{id}}})
}

// Call is [Client.Call] with a typed result.
func Call[Out any](ctx context.Context, c *Client, name string, in any) (Out, error) {
	var out Out
	err := c.Call(ctx, name, in, &out)
	return out, err
}

// Stub returns the endpoint as a Go function.
func Stub[In, Out any](c *Client, name string) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) { return Call[Out](ctx, c, name, in) }
}

// Stream calls an endpoint whose results come one by one. Leaving the loop, or the end of ctx, stops the function at the owner. The tensors
// of each result are the caller's, who closes them. An error is the last pair.
func Stream[Out any](ctx context.Context, c *Client, name string, in any) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s, err := c.openStream(ctx, name, in)
		var none Out
		if err != nil {
			yield(none, fmt.Errorf("stream %q: %w", name, err))
			return
		}
		defer s.close()
		for {
			var out Out
			switch err := s.next(ctx, &out); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(none, fmt.Errorf("stream %q: %w", name, err))
				return
			}
			if !yield(out, nil) {
				return
			}
		}
	}
}
