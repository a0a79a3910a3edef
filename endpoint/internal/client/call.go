package client

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Call identifies a value: the result of a call or of a task.
type Call struct {
	Name     string           // of the endpoint
	In       any              // argument; nil for none
	Metadata message.Metadata // sent with the call
	Label    string           // of the task that the call submits; empty for none
	Task     *TaskID          // a task; replaces the fields above
	Keep     bool             // keep the reference of the value
}

// String describes the call for errors.
func (c Call) String() string {
	if c.Task != nil {
		return "result of " + c.Task.String()
	}
	return fmt.Sprintf("call %s", status.Shown(c.Name))
}

// Fetch obtains a value and decodes it into out. It returns the reference to the value's object if call.Keep is set and
// the value has one. Otherwise it releases the reference. It does not call a function whose result out cannot hold.
func (c *Client) Fetch(ctx context.Context, call Call, out any) (ref *Reference, err error) {
	if err := checkTarget(out); err != nil {
		return nil, err
	}
	if call.Task != nil {
		return c.fetchTask(ctx, call, out)
	}
	conn, err := c.ForRequest(ctx)
	if err == nil {
		ref, err = c.fetchOn(ctx, conn, call, out)
	}
	if !NotSent(err) {
		return ref, err
	}
	return c.fetchAgain(ctx, call, out)
}

// fetchAgain is Fetch with the next connection. It is a separate function because it allocates.
func (c *Client) fetchAgain(ctx context.Context, call Call, out any) (ref *Reference, err error) {
	err = c.onConn(ctx, func(conn *Conn) (err error) {
		ref, err = c.fetchOn(ctx, conn, call, out)
		return err
	})
	return ref, err
}

// fetchOn is Fetch on conn.
func (c *Client) fetchOn(ctx context.Context, conn *Conn, call Call, out any) (*Reference, error) {
	if call.Keep {
		defer conn.objects.track()()
		if err := c.watchObjects(ctx, conn); err != nil {
			return nil, err
		}
	}
	got, err := c.valueOn(ctx, conn, call, out)
	switch {
	case err != nil || got.Object == nil:
		return nil, err
	case call.Keep:
		return c.keep(conn, got.Object), nil
	}
	conn.releaseObject(got.Object.ID, got.Object.Token)
	return nil, nil
}

// valueOn requests the value on conn and decodes it into out.
func (c *Client) valueOn(ctx context.Context, conn *Conn, call Call, out any) (message.Returned, error) {
	conn.slabs.BeginCall()
	defer conn.slabs.EndCall()
	if call.Task == nil {
		return c.callOn(ctx, conn, call, out)
	}
	_, frame, err := conn.RoundTrip(ctx, Request{Op: message.OpTaskResult, Body: message.Task{ID: call.Task.ID}, Returns: true, OfTask: true})
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return c.takeResult(conn, frame, out)
}

// Ask sends a request with the argument of a call and decodes the answer, which has no memory, into out.
func (c *Client) Ask(ctx context.Context, op message.Op, call Call, out any) error {
	return c.onConn(ctx, func(conn *Conn) error { return c.askOn(ctx, conn, op, call, out) })
}

// askOn is Ask on conn.
func (c *Client) askOn(ctx context.Context, conn *Conn, op message.Op, call Call, out any) error {
	ask, err := c.newCall(conn, op, call)
	if err != nil {
		return err
	}
	defer ask.close()
	if op == message.OpSubmit {
		ask.Late = conn.cancelLateTask
	}
	return conn.request(ctx, ask.Request, out)
}

func (c *Client) callOn(ctx context.Context, conn *Conn, call Call, out any) (message.Returned, error) {
	frame, again, err := c.roundTrip(ctx, conn, call)
	if again { // the function did not run; this time all memory is sent
		frame, _, err = c.roundTrip(ctx, conn, call)
	}
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return c.takeResult(conn, frame, out)
}

// roundTrip makes a call and records which memory the owner keeps. again is true if the owner refused the call because
// it no longer keeps memory that the call refers to. The caller closes the frame.
func (c *Client) roundTrip(ctx context.Context, conn *Conn, call Call) (frame wire.Frame, again bool, err error) {
	ask, err := c.newCall(conn, message.OpCall, call)
	if err != nil {
		return wire.Frame{}, false, err
	}
	defer ask.close()
	ask.Returns = true
	_, frame, err = conn.RoundTrip(ctx, ask.Request)
	switch {
	case !conn.keeps || len(ask.Callee.Handles) == 0:
	case err == nil:
		conn.known.Answered(ask.Callee.Handles)
	case errors.Is(err, status.ErrNotKept):
		again = conn.known.Missed(ask.Callee.Handles)
	}
	return frame, again, err
}

// outgoing is a call with its exported memory.
type outgoing struct {
	Request
	shared *transfer.Export
	load   codec.Payload
}

func (o *outgoing) close() {
	if o.shared != nil {
		o.shared.Close()
	}
	o.load.Close()
}

// newCall encodes a call for conn. The caller closes it after sending.
func (c *Client) newCall(conn *Conn, op message.Op, call Call) (o outgoing, err error) {
	o.Op, o.Calls, o.Callee.Endpoint, o.Callee.Label, o.Metadata = op, true, call.Name, call.Label, call.Metadata
	in := call.In
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
		if o.shared, err = conn.share(&o.Request, o.load.Storages); err != nil {
			o.load.Close()
			return outgoing{}, fmt.Errorf("share the argument: %w", err)
		}
		o.shared.AddNames(o.load.Storages, c.Socket)
		o.Callee.Handles, o.Files, o.Storages = o.shared.Handles, o.shared.Files, o.shared.Storages
	}
	return o, nil
}

// takeResult decodes the answer to a call into out. It borrows the frame.
func (c *Client) takeResult(conn *Conn, frame wire.Frame, out any) (message.Returned, error) {
	got, err := message.ParseReturned(frame.Body)
	if err != nil {
		return got, badAnswer(err)
	}
	im := c.importer()
	im.Slabs, im.Inline = &conn.slabs, conn.inline
	if err := decodeValue(im, got.Value, got.Handles, frame.Files, out); err != nil {
		if got.Object != nil {
			conn.releaseObject(got.Object.ID, got.Object.Token)
		}
		return got, err
	}
	return got, nil
}

// decodeValue decodes a value from the owner into out, which may be nil.
func decodeValue(im transfer.Importer, value message.RawMessage, handles []message.Handle, files *wire.Files, out any) error {
	err := checkTarget(out)
	if out == nil || err != nil || len(value) == 0 {
		if im.Slabs != nil && len(handles) > 0 {
			im.Slabs.Refuse(handles)
		}
		return err
	}
	storages, err := im.Storages(handles, files)
	if err != nil {
		return fmt.Errorf("result: %w", badClaim(err))
	}
	defer transfer.CloseStorages(storages) // the decoded value has its own references
	if _, err := codec.DecodePayload(value, storages, out, false); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// checkTarget returns an error if results cannot be decoded into out, or would lose content. out is nil for no result.
func checkTarget(out any) error {
	if out == nil {
		return nil
	}
	v := reflect.ValueOf(out)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("%w: the result needs a pointer, not a %T", status.ErrInvalid, out)
	}
	if err := codec.Carries(v.Type().Elem()); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}
