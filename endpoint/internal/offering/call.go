package offering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// call is one call that was sent to a worker. It has two sides that end independently.
//
// The worker's side holds a slot of the offer:
//
//	sent ──> running <──> delivering an item
//	 │          └───────────┴──> ended    the worker reported the end of the function, or its connection ended
//	 └──> ended                           the call was not sent, or the worker declined it
//
// The caller's side receives answers until it is closed. The last answer, an invalid answer, an item that the worker
// withdraws, or the end of the caller's context closes it. Closing it frees the arguments but not the slot, because the
// function may continue after its caller has left.
type call struct {
	worker *Worker
	offer  *offer
	number uint64
	name   string // of the endpoint
	stream bool

	answers chan answer // buffered for one item and the end

	// Guarded by the table's lock.
	began      bool                       // an item was received: the function runs, so the worker can no longer decline
	delivering bool                       // an item is being delivered to the caller
	ended      bool                       // the worker's side has ended, and the slot is free
	closed     bool                       // the caller's side has ended: no more answers are delivered
	overdue    bool                       // the caller's side ended long ago, and the worker's side has not
	timer      *time.Timer                // sets overdue; nil until the caller's side ends first
	memory     map[string]*tensor.Storage // arguments by the names the worker has for them; borrowed until closed
}

var errAbandoned = fmt.Errorf("%w: the caller has left", context.Canceled)

// call is the function of an endpoint that returns one result.
func (e *endpoint) call(ctx context.Context, in any) (any, error) {
	ctx, cancel := e.table.limited(ctx)
	defer cancel()
	_, a, err := e.firstAnswer(ctx, in)
	switch {
	case err != nil:
		return nil, err
	case a.payload == nil: // a nil pointer in a non-nil interface is not nil
		return nil, a.err
	}
	return a.payload, a.err
}

// stream is the function of an endpoint that returns a stream of results.
func (e *endpoint) stream(ctx context.Context, in any, send func(any) error) error {
	ctx, cancel := e.table.limited(ctx)
	defer cancel()
	c, a, err := e.firstAnswer(ctx, in)
	for err == nil && !a.last {
		if err = send(a.payload); err != nil { // send took the payload
			c.leave(err)
			a.taken <- err
			return err
		}
		a.taken <- nil
		a, err = c.wait(ctx)
	}
	if a.withdrew {
		err = e.table.countRefusal(expired(ctx))
	}
	if err != nil {
		return err
	}
	return a.err
}

// expired returns the cause of the end of ctx if its deadline has passed. A worker withdraws an item when the call's
// deadline passes, and the owner may receive that before its own timer fires.
func expired(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); !ok || time.Now().Before(deadline) {
		return nil
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C: // the deadline was extended
	}
	return context.Cause(ctx)
}

// firstAnswer sends a call to a worker and returns its first answer. A call that a worker declines goes to another
// worker, or keeps its place in the queue until one has room.
func (e *endpoint) firstAnswer(ctx context.Context, in any) (*call, answer, error) {
	var turn uint64
	for {
		c, err := e.begin(ctx, in, &turn)
		if err != nil {
			return nil, answer{}, e.table.countRefusal(err)
		}
		a, err := c.wait(ctx)
		if err != nil || !a.declined {
			return c, a, err
		}
	}
}

// limited applies the limit on the time of a call.
func (t *Table) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Limits.WorkerTime <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, t.Limits.WorkerTime, &overTime{t})
}

// overTime is the cause of a context that ended because of the limit on the time of a call.
type overTime struct{ table *Table }

func (o *overTime) Error() string {
	return fmt.Sprintf("the worker has not answered within %v", o.table.Limits.WorkerTime)
}

func (o *overTime) Unwrap() error { return context.DeadlineExceeded }

// countRefusal counts err as a refusal if it is the limit on the time of a call.
func (t *Table) countRefusal(err error) error {
	var endCall *overTime
	if errors.As(err, &endCall) {
		t.Refusals.Add(status.LimitWorkerTime)
	}
	return err
}

// begin sends a call to a worker that has room. It waits for one, in the order of the turns.
func (e *endpoint) begin(ctx context.Context, in any, turn *uint64) (*call, error) {
	args := (*in.(*any)).(*Arguments)
	for {
		o, err := e.place(ctx, turn)
		if err != nil {
			return nil, err
		}
		c := e.enter(o)
		if c == nil { // the offer has ended before the call was sent
			continue
		}
		if err := c.send(ctx, args); err != nil {
			c.abandon()
			c.worker.endCall(c)
			return nil, err
		}
		return c, nil
	}
}

// enter records a call at the worker of an offer whose slot it holds. It returns nil and frees the slot if the offer has
// ended.
func (e *endpoint) enter(o *offer) *call {
	w := o.worker
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	if !o.currentLocked() {
		o.releaseSlotLocked()
		return nil
	}
	w.last++
	c := &call{worker: w, offer: o, number: w.last, name: e.info.Name, stream: e.info.Stream, answers: make(chan answer, 2)}
	w.calls[c.number] = c
	return c
}

// send sends the call to the worker, with the memory of the arguments.
func (c *call) send(ctx context.Context, args *Arguments) error {
	event := message.OfferEvent{Kind: message.OfferCall, Call: c.number, Endpoint: c.name, Args: args.Raw}
	if deadline, ok := ctx.Deadline(); ok {
		event.Timeout = max(time.Until(deadline), 1)
	}
	var files []*os.File
	if len(args.Storages) > 0 {
		shared, err := transfer.ExportOrInline(args.Raw, args.Storages, c.worker.Inline, false)
		if err != nil {
			return fmt.Errorf("share the argument with the worker: %w", err)
		}
		defer shared.Close()
		if err := shared.RestrictToReading(); err != nil {
			return fmt.Errorf("share the argument with the worker: %w", err)
		}
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

// wait returns the next answer. After an error the caller's side is closed.
func (c *call) wait(ctx context.Context) (answer, error) {
	gone := c.worker.gone
	for {
		select {
		case a := <-c.answers:
			return a, nil
		case <-ctx.Done():
			err := c.worker.table.countRefusal(context.Cause(ctx))
			c.leave(err)
			return answer{}, err
		case <-gone:
		}
		select {
		case a := <-c.answers: // an answer before the end of the connection
			return a, nil
		default:
		}
		if !c.hasEnded() {
			c.abandon()
			return answer{}, errGone(c.worker)
		}
		gone = nil // the last answer is being read: only that answer or ctx ends the call
	}
}

// hasEnded reports whether the worker has reported the end of the function.
func (c *call) hasEnded() bool {
	c.worker.table.mu.Lock()
	defer c.worker.table.mu.Unlock()
	return c.ended
}

// leave closes the caller's side and sends the reason to the worker if the function may still run.
func (c *call) leave(cause error) {
	if c.abandon() {
		c.cancel(cause)
	}
}

// abandon closes the caller's side and drops unread answers. It reports whether the worker still has the call.
func (c *call) abandon() bool {
	t := c.worker.table
	t.mu.Lock()
	c.closeLocked()
	has := c.worker.calls[c.number] == c
	t.mu.Unlock()
	for {
		select {
		case a := <-c.answers:
			a.drop()
		default:
			return has
		}
	}
}

// closeLocked closes the caller's side. If the worker has not reported the end of the function by then, the call
// becomes overdue after a time.
func (c *call) closeLocked() {
	if c.closed {
		return
	}
	c.closed, c.memory = true, nil
	if c.worker.calls[c.number] == c {
		c.timer = time.AfterFunc(c.worker.table.Overdue, c.becomeOverdue)
	}
}

// maxReason is the maximum number of bytes of the reason for a cancel.
const maxReason = 256

// cancel sends the worker the cancel of a call. It does not wait if the worker is not reading.
func (c *call) cancel(cause error) {
	event := message.OfferEvent{Kind: message.OfferCancel, Call: c.number}
	if cause != nil && cause != context.Canceled {
		event.Reason = message.CutText(status.EncodeSafely(cause).Message, maxReason)
	}
	body, err := message.MarshalShown(event)
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
	w.cancels.Go(func() { // at most one for each call
		_ = w.conn.SendContext(context.Background(), wire.KindEvent, c.offer.request, body)
	})
}

// endCall ends the worker's side of a call and frees its slot.
func (w *Worker) endCall(c *call) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.overLocked(c)
}

func (w *Worker) overLocked(c *call) {
	if w.calls[c.number] != c {
		return
	}
	delete(w.calls, c.number)
	c.ended = true
	c.stopLocked()
	c.offer.releaseSlotLocked()
	w.idleLocked()
}
