package offering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// call is one call that a worker has.
//
//	waiting ──> taking ──> waiting     an item of a stream
//	   │           └─────> over        the last answer
//	   └──> left ────────> over        nobody waits for it any more; it still has its place until it is answered
type call struct {
	worker *Worker
	offer  *offer
	number uint64
	name   string // of the endpoint
	stream bool

	answers chan answer // has room for one

	// Guarded by the table's lock.
	taking bool                       // an answer is being looked at
	left   bool                       // nobody waits any more
	memory map[string]*tensor.Storage // of the arguments, by the names that the worker knows; borrowed while somebody waits
}

// answer is what a worker answered, checked.
type answer struct {
	payload *codec.Payload // owned by whoever takes the answer; nil at the end of a stream
	err     error
	last    bool
	taken   chan error // gets what became of an item, once; has room for it
}

// drop gives back an answer that nobody takes.
func (a answer) drop() {
	if a.payload != nil {
		a.payload.Close()
	}
	if a.taken != nil {
		a.taken <- errNobodyWaits
	}
}

var errNobodyWaits = fmt.Errorf("%w: nobody waits for the answer any more", context.Canceled)

// call is the function of an endpoint that returns one result.
func (e *endpoint) call(ctx context.Context, in any) (any, error) {
	ctx, cancel := e.table.limited(ctx)
	defer cancel()
	c, err := e.begin(ctx, in)
	if err != nil {
		return nil, err
	}
	a, err := c.wait(ctx)
	if err != nil {
		return nil, err
	}
	if a.payload == nil { // a nil pointer is no nil any
		return nil, a.err
	}
	return a.payload, a.err
}

// stream is the function of an endpoint whose results come one by one.
func (e *endpoint) stream(ctx context.Context, in any, send func(any) error) error {
	ctx, cancel := e.table.limited(ctx)
	defer cancel()
	c, err := e.begin(ctx, in)
	if err != nil {
		return err
	}
	for {
		a, err := c.wait(ctx)
		if err != nil || a.last {
			return errors.Join(err, a.err)
		}
		err = send(a.payload) // which takes it
		a.taken <- err
		if err != nil {
			c.leave(err)
			return err
		}
	}
}

// limited bounds the time of a call.
func (t *Table) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Bounds.Time <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, t.Bounds.Time, &overTime{t})
}

// overTime is the end of the time that a call may take.
type overTime struct{ table *Table }

func (o *overTime) Error() string {
	return fmt.Sprintf("the worker has not answered within %v", o.table.Bounds.Time)
}

func (o *overTime) Unwrap() error { return context.DeadlineExceeded }

// begin sends a call to a worker.
func (e *endpoint) begin(ctx context.Context, in any) (*call, error) {
	args := (*in.(*any)).(*Arguments)
	for {
		o, err := e.place(ctx)
		if err != nil {
			return nil, e.table.noted(err)
		}
		c := e.enter(o)
		if c == nil { // the worker has gone and heard nothing of the call
			continue
		}
		if err := c.send(ctx, args); err != nil {
			c.abandon()
			c.worker.over(c)
			return nil, e.table.noted(err)
		}
		return c, nil
	}
}

// noted counts an error that is the end of the time of a call.
func (t *Table) noted(err error) error {
	var over *overTime
	if errors.As(err, &over) {
		t.Refusals.Add(limits.WorkerTime)
	}
	return err
}

// enter notes a call at its worker; nil where that has gone, or has withdrawn the endpoint.
func (e *endpoint) enter(o *offer) *call {
	w := o.worker
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	if w.offers[o.request] != o {
		o.leaveLocked()
		return nil
	}
	w.last++
	c := &call{worker: w, offer: o, number: w.last, name: e.info.Name, stream: e.info.Stream, answers: make(chan answer, 1)}
	w.calls[c.number] = c
	return c
}

// send tells the worker of the call, with the memory of the arguments.
func (c *call) send(ctx context.Context, args *Arguments) error {
	event := message.OfferEvent{Kind: message.OfferCall, Call: c.number, Endpoint: c.name, Args: args.Raw}
	if deadline, ok := ctx.Deadline(); ok {
		event.Timeout = max(time.Until(deadline), 1)
	}
	var files []*os.File
	if len(args.Storages) > 0 {
		shared, err := transfer.ExportStorages(args.Storages)
		if err != nil {
			return fmt.Errorf("share the argument with the worker: %w", err)
		}
		defer shared.Close()
		memory := make(map[string]*tensor.Storage, len(args.Storages))
		for i, s := range args.Storages {
			name := transfer.NewID()
			memory[name], shared.Handles[i].Name = s, name
		}
		event.Handles, files = shared.Handles, shared.Files
		c.worker.table.mu.Lock()
		c.memory = memory
		c.worker.table.mu.Unlock()
	}
	body, err := message.MarshalPayload(event)
	if err != nil {
		return err
	}
	err = c.worker.conn.SendContext(ctx, wire.KindEvent, c.offer.request, body, files...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wire.ErrNotSent):
		return context.Cause(ctx)
	case errors.Is(err, wire.ErrTooLarge):
		return status.WithClass(status.ErrLimit, err)
	}
	return errGone(c.worker)
}

// wait returns the next answer. On an error nobody waits for the call any more.
func (c *call) wait(ctx context.Context) (answer, error) {
	select {
	case a := <-c.answers:
		return a, nil
	case <-ctx.Done():
		err := c.worker.table.noted(context.Cause(ctx))
		c.leave(err)
		return answer{}, err
	case <-c.worker.gone:
	}
	select {
	case a := <-c.answers: // it came before the end
		return a, nil
	default:
		c.abandon()
		return answer{}, errGone(c.worker)
	}
}

// leave notes that nobody waits for the call any more, and tells the worker why.
func (c *call) leave(cause error) {
	if c.abandon() {
		c.cancel(cause)
	}
}

// abandon notes that nobody waits for the call any more, and reports whether the worker still has it.
func (c *call) abandon() bool {
	t := c.worker.table
	t.mu.Lock()
	c.left = true
	c.memory = nil // the arguments go now
	has := c.worker.calls[c.number] == c
	t.mu.Unlock()
	select {
	case a := <-c.answers:
		a.drop()
	default:
	}
	return has
}

// maxReason is how many bytes of the reason for a cancel cross.
const maxReason = 256

// cancel tells the worker that nobody waits for a call any more. It does not wait for one that does not read.
func (c *call) cancel(cause error) {
	event := message.OfferEvent{Kind: message.OfferCancel, Call: c.number}
	if cause != nil && cause != context.Canceled {
		event.Reason = message.CutText(status.EncodeSafely(cause).Message, maxReason)
	}
	body, err := message.Marshal(event)
	if err != nil {
		return
	}
	w := c.worker
	if err := w.conn.SendContext(noTime, wire.KindEvent, c.offer.request, body); !errors.Is(err, wire.ErrNotSent) {
		return
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if w.ended {
		return
	}
	w.cancels.Go(func() { // a call has one: there are no more of them than calls
		_ = w.conn.SendContext(context.Background(), wire.KindEvent, c.offer.request, body)
	})
}

// over gives a call's place back.
func (w *Worker) over(c *call) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.overLocked(c)
}

func (w *Worker) overLocked(c *call) {
	if w.calls[c.number] != c {
		return
	}
	delete(w.calls, c.number)
	c.offer.leaveLocked()
	w.idleLocked()
}

// Answer takes what a worker answers to a call. It borrows the files that it does not take. An error is the worker's
// answer, and not about the connection. For an item of a stream it returns when there is room for the next one.
func (w *Worker) Answer(ctx context.Context, in *message.Answer, files *wire.Files) error {
	c, err := w.take(in)
	if err != nil {
		return err
	}
	a := answer{last: !in.More}
	if in.More {
		a.taken = make(chan error, 1)
	}
	var bad error
	switch {
	case in.Error != nil:
		a.err, a.last = w.failure(in.Error), true
	case c.stream && !in.More:
		if len(in.Value) > 0 || len(in.Handles) > 0 {
			bad = fmt.Errorf("%w: the last answer of a stream has no value", status.ErrInvalid)
		}
	default:
		a.payload, bad = c.payload(in, files)
	}
	if bad != nil {
		a.last = true
		a.err = fmt.Errorf("%w: what %s answered is refused: %v", message.CodeInternal, w, bad) // its class is the worker's affair
	}
	taken := a.taken
	if a.last {
		a.taken = nil
		w.over(c) // before the answer is delivered: a caller that has it may call again, and finds room
	}
	if err := c.deliver(a); err != nil || bad != nil {
		return errors.Join(bad, err)
	}
	if a.last {
		return nil
	}
	select {
	case err := <-taken:
		w.table.mu.Lock()
		c.taking = false
		w.table.mu.Unlock()
		if err != nil {
			w.over(c)
			return errNobodyWaits
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take finds the call that an answer is for. The last answer takes it off the list, so that there is no other.
func (w *Worker) take(in *message.Answer) (*call, error) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	c := w.calls[in.Call]
	switch {
	case c == nil:
		return nil, fmt.Errorf("%w: this worker has no call %d that is not answered", status.ErrNotFound, in.Call)
	case c.taking:
		return nil, fmt.Errorf("%w: an answer to call %d came before it was the turn of the next one", status.ErrInvalid, in.Call)
	case c.left:
		w.overLocked(c)
		return nil, errNobodyWaits
	case in.More && !c.stream:
		return nil, fmt.Errorf("%w: endpoint %q returns one result, and call %d gets one answer", status.ErrInvalid, c.name, in.Call)
	}
	c.taking = true
	return c, nil
}

// deliver passes an answer on to whoever waits for it, or drops it.
func (c *call) deliver(a answer) error {
	t := c.worker.table
	t.mu.Lock()
	if !c.left {
		c.answers <- a // has room: one is taken at a time
		t.mu.Unlock()
		return nil
	}
	c.worker.overLocked(c)
	t.mu.Unlock()
	if a.payload != nil {
		a.payload.Close()
	}
	return errNobodyWaits
}

// failure is a worker's error as callers get it. What their clients would act on is not the worker's to say.
func (w *Worker) failure(e *message.Error) error {
	out := *e
	notKept := e.Code == message.CodeNotFound && e.Type == "not kept"
	if e.Code == message.CodeProtocol || e.Code == message.CodeUnavailable || notKept {
		out.Code = message.CodeInternal
		out.Data = nil
	}
	return status.DecodeError(&out)
}

// payload checks a result, and maps its memory.
func (c *call) payload(in *message.Answer, files *wire.Files) (_ *codec.Payload, err error) {
	value := in.Value
	if len(value) == 0 {
		value = codec.Nothing
	}
	if err := c.fits(in.Handles); err != nil {
		return nil, err
	}
	storages, err := c.storages(in.Handles, files)
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	if err := codec.CheckPassedOn(value, storages); err != nil {
		closeAll(storages)
		return nil, fmt.Errorf("result: %w", err)
	}
	return &codec.Payload{Value: append(message.RawMessage(nil), value...), Storages: storages}, nil
}

// fits refuses more memory than a client may have of results, before it is mapped: a sparse object costs its owner
// nothing.
func (c *call) fits(handles []message.Handle) error {
	most, sum := uint64(c.worker.table.Bounds.ResultBytes), uint64(0)
	for _, h := range handles {
		if h.Bytes > most || sum > most-h.Bytes {
			return limits.Exceeded(limits.ObjectBytes, "the memory of a result has more than %d bytes", most)
		}
		sum += h.Bytes
	}
	return nil
}

// storages maps the memory of a result. The caller closes it.
func (c *call) storages(handles []message.Handle, files *wire.Files) ([]*tensor.Storage, error) {
	ours := make([]bool, len(handles))
	im := transfer.Importer{Devices: c.worker.table.Devices, Own: func(i int, h message.Handle) *tensor.Storage {
		s := c.known(h.Name)
		ours[i] = s != nil
		return s
	}}
	storages, err := im.Storages(handles, files)
	if err != nil {
		return nil, err
	}
	for i, s := range storages {
		if ours[i] {
			continue
		}
		if err := engine.CheckSettled(handles[i].Kind, s); err != nil {
			closeAll(storages)
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
	}
	return storages, nil
}

// known returns the memory that the server named to the worker; nil for an unknown name. The caller closes it.
func (c *call) known(name string) *tensor.Storage {
	if name == "" {
		return nil
	}
	t := c.worker.table
	t.mu.Lock()
	s := c.memory[name]
	if s != nil {
		s = s.Retain() // the arguments are there as long as somebody waits, and memory says that
	}
	t.mu.Unlock()
	if s != nil {
		return s
	}
	return t.Borrow(name)
}
