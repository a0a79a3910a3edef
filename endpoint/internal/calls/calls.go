// Package calls makes calls at an owner: it encodes arguments, shares their memory, and decodes and maps results.
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

// Call says which value is wanted: that of a call, or the result of a task.
type Call struct {
	Name     string           // of the endpoint
	In       any              // the argument; nil for none
	Metadata message.Metadata // goes with the call
	Task     string           // the task, instead of the three above
}

// String says it for errors.
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

// New makes an invoker. References that come with results are kept in refs, and their memory is mapped by the importer.
func New(conn *connector.Connector, refs *reference.Table, importer transfer.Importer) *Invoker {
	return &Invoker{conn: conn, refs: refs, importer: importer}
}

// Fetch fetches a value and decodes it into out. The reference that may come with it goes back.
func (i *Invoker) Fetch(ctx context.Context, c Call, out any) error {
	for {
		l, err := i.conn.Connected(ctx)
		if err != nil {
			return err
		}
		got, err := i.fetchOn(ctx, l, c, out)
		if link.IsUnasked(err) {
			continue
		}
		if err == nil && got.Object != nil {
			l.ReleaseObject(got.Object.ID, got.Object.Token)
		}
		return err
	}
}

// fetchOn is Fetch on a certain connection.
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

// Hold is Fetch that keeps the reference; nil where none comes.
func (i *Invoker) Hold(ctx context.Context, c Call, out any) (ref *reference.Reference, err error) {
	err = i.conn.OnLink(ctx, func(l *link.Link) (err error) {
		ref, err = i.holdOn(ctx, l, c, out)
		return err
	})
	return ref, err
}

// holdOn is Hold on a certain connection.
func (i *Invoker) holdOn(ctx context.Context, l *link.Link, c Call, out any) (*reference.Reference, error) {
	defer l.ObjectEvents.Expect()()
	if err := i.refs.Watch(ctx, l); err != nil {
		return nil, err
	}
	got, err := i.fetchOn(ctx, l, c, out)
	if err != nil || got.Object == nil {
		return nil, err
	}
	return i.refs.Keep(l, got.Object), nil
}

// Ask makes a request with the argument of a call, whose answer has no memory, and decodes that into out.
func (i *Invoker) Ask(ctx context.Context, op message.Op, c Call, out any) error {
	return i.conn.OnLink(ctx, func(l *link.Link) error { return i.askOn(ctx, l, op, c, out) })
}

// askOn is Ask on a certain connection.
func (i *Invoker) askOn(ctx context.Context, l *link.Link, op message.Op, c Call, out any) error {
	ask, err := i.newCall(l, op, c)
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

func (i *Invoker) callOn(ctx context.Context, l *link.Link, c Call, out any) (message.Returned, error) {
	l.Slabs.Expect()
	defer l.Slabs.Looked()
	frame, again, err := i.roundTrip(ctx, l, c)
	if again { // the function did not run; now all memory goes along
		frame, _, err = i.roundTrip(ctx, l, c)
	}
	if err != nil {
		return message.Returned{}, err
	}
	defer frame.Files.Close()
	return i.takeResult(l, frame, out)
}

// roundTrip makes a call, and notes what its answer says of the memory that the owner keeps. again is true where the
// call was refused because memory is not kept that it named. The caller closes the frame.
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
		o.shared.Claim(o.load.Storages, i.importer.Socket)
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
	defer transfer.CloseStorages(storages) // what is made has other references
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
