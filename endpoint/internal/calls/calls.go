// Package calls makes calls to an owner: it encodes arguments, shares their memory, and decodes and maps results.
package calls

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/reference"
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
	Task     string           // id of a task; replaces the other fields
}

// String describes the call for errors.
func (c Call) String() string {
	if c.Task != "" {
		return "result of task " + message.CutText(c.Task, status.MaxShown)
	}
	return fmt.Sprintf("call %s", status.Shown(c.Name))
}

// Invoker makes the calls of a client.
type Invoker struct {
	conn     *connector.Connector
	refs     *reference.Table
	importer transfer.Importer
}

// New returns the invoker of a client. It registers references of results in refs; importer maps their memory.
func New(conn *connector.Connector, refs *reference.Table, importer transfer.Importer) *Invoker {
	return &Invoker{conn: conn, refs: refs, importer: importer}
}

// Fetch obtains a value and decodes it into out. It releases the reference, if the value has one.
func (i *Invoker) Fetch(ctx context.Context, c Call, out any) error {
	l, err := i.conn.ForRequest(ctx)
	if err == nil {
		err = i.fetchValueOn(ctx, l, c, out)
	}
	if !link.IsNotSent(err) {
		return err
	}
	// OnLink allocates; most calls return before.
	return i.conn.OnLink(ctx, func(l *link.Link) error { return i.fetchValueOn(ctx, l, c, out) })
}

// fetchValueOn is Fetch on l.
func (i *Invoker) fetchValueOn(ctx context.Context, l *link.Link, c Call, out any) error {
	got, err := i.fetchOn(ctx, l, c, out)
	if err == nil && got.Object != nil {
		l.ReleaseObject(got.Object.ID, got.Object.Token)
	}
	return err
}

// fetchOn is Fetch on l, but does not release the reference.
func (i *Invoker) fetchOn(ctx context.Context, l *link.Link, c Call, out any) (message.Returned, error) {
	if c.Task == "" {
		return i.callOn(ctx, l, c, out)
	}
	ask := link.Request{Op: message.OpTaskResult, Body: message.Task{ID: c.Task}, Returns: true}
	_, frame, err := l.RoundTrip(ctx, ask)
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return i.takeResult(l, frame, out)
}

// Hold is Fetch, but keeps and returns the reference, which is nil if the value has none.
func (i *Invoker) Hold(ctx context.Context, c Call, out any) (ref *reference.Reference, err error) {
	err = i.conn.OnLink(ctx, func(l *link.Link) (err error) {
		ref, err = i.holdOn(ctx, l, c, out)
		return err
	})
	return ref, err
}

// holdOn is Hold on l.
func (i *Invoker) holdOn(ctx context.Context, l *link.Link, c Call, out any) (*reference.Reference, error) {
	defer l.ObjectEvents.Track()()
	if err := i.refs.Watch(ctx, l); err != nil {
		return nil, err
	}
	got, err := i.fetchOn(ctx, l, c, out)
	if err != nil || got.Object == nil {
		return nil, err
	}
	return i.refs.Keep(l, got.Object), nil
}

// Submit starts a call as a task. cancel cancels the task on the connection of the submission without waiting. It does
// nothing if the connection has ended.
func (i *Invoker) Submit(ctx context.Context, c Call) (info message.TaskInfo, cancel func(), err error) {
	err = i.conn.OnLink(ctx, func(l *link.Link) error {
		cancel = func() { l.CancelTask(info.ID) }
		return i.askOn(ctx, l, message.OpSubmit, c, &info)
	})
	return info, cancel, err
}

// Ask sends a request with the argument of a call and decodes the answer, which has no memory, into out.
func (i *Invoker) Ask(ctx context.Context, op message.Op, c Call, out any) error {
	return i.conn.OnLink(ctx, func(l *link.Link) error { return i.askOn(ctx, l, op, c, out) })
}

// askOn is Ask on l.
func (i *Invoker) askOn(ctx context.Context, l *link.Link, op message.Op, c Call, out any) error {
	ask, err := i.newCall(l, op, c)
	if err != nil {
		return err
	}
	defer ask.close()
	if op == message.OpSubmit {
		ask.Late = l.CancelLateTask
	}
	_, frame, err := l.RoundTrip(ctx, ask.Request)
	if err != nil {
		return err
	}
	defer frame.Files.Close()
	return link.DecodeAnswer(frame, out)
}

func (i *Invoker) callOn(ctx context.Context, l *link.Link, c Call, out any) (message.Returned, error) {
	l.Slabs.BeginCall()
	defer l.Slabs.EndCall()
	frame, again, err := i.roundTrip(ctx, l, c)
	if again { // the function did not run; this time all memory is sent
		frame, _, err = i.roundTrip(ctx, l, c)
	}
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return i.takeResult(l, frame, out)
}

// roundTrip makes a call and records which memory the owner keeps. again is true if the owner refused the call because
// it no longer keeps memory that the call refers to. The caller closes the frame.
func (i *Invoker) roundTrip(ctx context.Context, l *link.Link, c Call) (frame wire.Frame, again bool, err error) {
	ask, err := i.newCall(l, message.OpCall, c)
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

// outgoing is a call with its exported memory.
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

// newCall encodes a call for l. The caller closes it after sending.
func (i *Invoker) newCall(l *link.Link, op message.Op, c Call) (o outgoing, err error) {
	o.Op, o.Calls, o.Callee.Endpoint, o.Metadata = op, true, c.Name, c.Metadata
	in := c.In
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
		o.shared.AddNames(o.load.Storages, i.importer.Socket)
		o.Callee.Handles, o.Files, o.Storages = o.shared.Handles, o.shared.Files, o.shared.Storages
	}
	return o, nil
}

// takeResult decodes the answer to a call into out. It borrows the frame.
func (i *Invoker) takeResult(l *link.Link, frame wire.Frame, out any) (message.Returned, error) {
	got, err := message.ParseReturned(frame.Body)
	if err != nil {
		return got, link.BadAnswer(err)
	}
	im := i.importer
	im.Slabs = &l.Slabs
	if err := decodeValue(im, got.Value, got.Handles, frame.Files, out); err != nil {
		if got.Object != nil {
			l.ReleaseObject(got.Object.ID, got.Object.Token)
		}
		return got, err
	}
	return got, nil
}

// decodeValue decodes a value from the owner into out, which may be nil.
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
	defer transfer.CloseStorages(storages) // the decoded value has its own references
	if _, err := codec.DecodePayload(value, storages, out, false); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// checkTarget returns an error if results cannot be decoded into out.
func checkTarget(out any) error {
	if v := reflect.ValueOf(out); v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("%w: the result needs a pointer, not a %T", status.ErrInvalid, out)
	}
	return nil
}
