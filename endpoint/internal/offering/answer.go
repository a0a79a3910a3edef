package offering

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// answer is a validated answer of a worker.
type answer struct {
	payload  *codec.Payload // owned by the receiver; nil at the end of a stream
	err      error
	last     bool
	declined bool       // the function has not run; another worker may run it
	withdrew bool       // err is the error of an item that the worker withdrew
	taken    chan error // receives the result of delivering an item once; buffered
}

// drop releases an answer that no caller receives.
func (a answer) drop() {
	if a.payload != nil {
		a.payload.Close()
	}
	if a.taken != nil {
		a.taken <- errAbandoned
	}
}

// ends reports whether an answer is the end of its function.
func ends(in *message.Answer) bool { return !in.More || in.Error != nil }

// Answer processes a worker's answer to a call. It borrows the files that it does not take. The error is returned to
// the worker and does not affect the connection. For an item of a stream, Answer returns when the worker may send the
// next item.
func (w *Worker) Answer(ctx context.Context, in *message.Answer, files *wire.Files) error {
	c, a, err := w.take(in)
	switch {
	case err != nil:
		return err
	case a.last:
		return c.finish(a, in, files)
	}
	return c.pass(ctx, in, files)
}

// take finds the call of an answer. The end of a function frees its slot, also if no caller receives the answer.
func (w *Worker) take(in *message.Answer) (*call, answer, error) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	c := w.calls[in.Call]
	switch {
	case c == nil:
		return nil, answer{}, fmt.Errorf("%w: this worker has no call %d that is not answered", status.ErrNotFound, in.Call)
	case ends(in):
		a, err := c.endLocked(in)
		return c, a, err
	case c.closed:
		return nil, answer{}, errAbandoned
	case !c.stream:
		return nil, answer{}, fmt.Errorf("%w: endpoint %q returns one result, and call %d gets one answer", status.ErrInvalid, c.name, in.Call)
	case c.delivering:
		err := fmt.Errorf("%w: an item of call %d was sent before the response to the previous item", status.ErrInvalid, in.Call)
		c.deliverLocked(answer{err: c.refused(err), last: true})
		return nil, answer{}, err
	}
	c.began, c.delivering = true, true
	return c, answer{}, nil
}

// endLocked ends the worker's side of a call. It returns the last answer without the result, or an error if the
// caller's side is closed.
func (c *call) endLocked(in *message.Answer) (answer, error) {
	a := answer{last: true, declined: in.Error.Declines() && !c.began}
	if a.declined {
		c.offer.declinedLocked()
	} else {
		c.offer.acceptedLocked()
	}
	if c.delivering && in.Error == nil {
		a.err = fmt.Errorf("%w: call %d ended before the response to its last item", status.ErrInvalid, c.number)
	}
	c.worker.overLocked(c)
	if a.declined {
		c.offer.failStuckLocked()
	}
	if c.closed {
		return answer{}, errAbandoned
	}
	return a, nil
}

// finish delivers the last answer of a call.
func (c *call) finish(a answer, in *message.Answer, files *wire.Files) error {
	bad := a.err
	switch {
	case a.declined, bad != nil:
	case in.Error != nil:
		a.err = c.worker.failure(in.Error)
	case !c.stream:
		a.payload, bad = c.payload(in, files)
	case len(in.Value) > 0 || len(in.Handles) > 0:
		bad = fmt.Errorf("%w: the last answer of a stream has no value", status.ErrInvalid)
	}
	if bad != nil {
		a.err = c.refused(bad)
	}
	return errors.Join(bad, c.deliver(a))
}

// pass delivers an item of a stream and waits until the caller has received it. If ctx ends first, the worker has
// withdrawn the item: the call ends with an error, and its slot is freed when the worker reports the end of the
// function.
func (c *call) pass(ctx context.Context, in *message.Answer, files *wire.Files) error {
	payload, bad := c.payload(in, files)
	if bad != nil {
		_ = c.deliver(answer{err: c.refused(bad), last: true}) // the worker receives the first error
		return bad
	}
	taken := make(chan error, 1)
	if err := c.deliver(answer{payload: payload, taken: taken}); err != nil {
		return err
	}
	select {
	case err := <-taken:
		return c.passed(err)
	case <-ctx.Done():
	}
	select {
	case err := <-taken:
		return c.passed(err)
	default:
	}
	cause := context.Cause(ctx)
	t := c.worker.table
	t.mu.Lock()
	defer t.mu.Unlock()
	c.deliverLocked(answer{err: c.withdrawnLocked(cause), last: true, withdrew: true})
	return cause
}

// passed records that an item was delivered. It returns an error if the caller has left.
func (c *call) passed(err error) error {
	if err != nil {
		return errAbandoned
	}
	c.worker.table.mu.Lock()
	defer c.worker.table.mu.Unlock()
	c.delivering = false
	return nil
}

// withdrawnLocked returns the caller's error for an item whose request ended before it was delivered.
func (c *call) withdrawnLocked(cause error) error {
	switch {
	case c.worker.ended:
		return errGone(c.worker)
	case errors.Is(cause, context.DeadlineExceeded), errors.Is(cause, status.ErrServerClosed):
		return cause
	}
	return fmt.Errorf("%w: %s withdrew an item of its stream: %v", message.CodeInternal, c.worker, cause)
}

// refused returns the caller's error for an invalid answer. It is an internal error because the worker is at fault.
func (c *call) refused(bad error) error {
	return fmt.Errorf("%w: invalid answer of %s: %v", message.CodeInternal, c.worker, bad)
}

// deliver passes an answer on to the caller, or drops it if the caller's side is closed.
func (c *call) deliver(a answer) error {
	t := c.worker.table
	t.mu.Lock()
	delivered := c.deliverLocked(a)
	t.mu.Unlock()
	if delivered {
		return nil
	}
	if a.payload != nil {
		a.payload.Close()
	}
	return errAbandoned
}

// deliverLocked passes an answer on to the caller and reports whether the caller's side was open. The last answer closes
// it.
func (c *call) deliverLocked(a answer) bool {
	if c.closed {
		return false
	}
	c.answers <- a // does not block: there is one item at a time, and one end
	if a.last {
		c.closeLocked()
	}
	return true
}

// failure converts a worker's error for callers. Error codes that change a client's behavior are reserved for the owner,
// so failure replaces them by an internal error.
func (w *Worker) failure(e *message.Error) error {
	out := *e
	notKept := e.Code == message.CodeNotFound && e.Type == "not kept"
	if e.Code == message.CodeProtocol || e.Code == message.CodeUnavailable || notKept {
		out.Code = message.CodeInternal
		out.Data = nil
	}
	return status.DecodeError(&out)
}

// payload validates a result and maps its memory.
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
	if err := codec.CheckForwarded(value, storages); err != nil {
		closeAll(storages)
		return nil, fmt.Errorf("result: %w", err)
	}
	return &codec.Payload{Value: append(message.RawMessage(nil), value...), Storages: storages}, nil
}

// fits returns an error if a result has more memory than a client may use. It is called before the memory is mapped,
// because a sparse file costs the worker nothing.
func (c *call) fits(handles []message.Handle) error {
	most, sum := uint64(c.worker.table.Limits.ObjectBytes), uint64(0)
	for _, h := range handles {
		if h.Bytes > most || sum > most-h.Bytes {
			return status.Exceeded(status.LimitObjectBytes, "the memory of a result has more than %d bytes", most)
		}
		sum += h.Bytes
	}
	return nil
}

// storages maps the memory of a result. The caller closes it.
func (c *call) storages(handles []message.Handle, files *wire.Files) ([]*tensor.Storage, error) {
	ours := make([]bool, len(handles))
	im := transfer.Importer{Devices: c.worker.table.Devices, Inline: c.worker.Inline, Own: func(i int, h message.Handle) *tensor.Storage {
		s := c.sharedMemory(h.Name)
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

// sharedMemory returns the memory that the server shared with the worker under a name, or nil for an unknown name. The
// caller closes it.
func (c *call) sharedMemory(name string) *tensor.Storage {
	if name == "" {
		return nil
	}
	t := c.worker.table
	t.mu.Lock()
	s := c.memory[name]
	if s != nil {
		s = s.Retain() // memory is cleared before the caller releases the arguments
	}
	t.mu.Unlock()
	if s != nil {
		return s
	}
	return t.Borrow(name)
}
