package engine

import (
	"context"
	"sync"

	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Outcome is the result of a task. It releases its reference when the task is dropped, when the managed object of the
// result is freed, or when the only waiting call has received it.
type Outcome struct {
	Definition           *Definition // the endpoint that ran
	task                 string      // id of the task
	Cached               bool        // the result came from the cache
	discardAfterDelivery bool        // a single call waits for the result and discards the task afterwards
	object               *Object     // the object of the result, if it is managed; guarded by objects.mu

	mu   sync.Mutex
	kept ResultRef // zero after drop
}

// Fetch returns another reference to the result.
func (o *Outcome) Fetch() (ResultRef, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept.Result == nil {
		return ResultRef{}, task.ErrDiscarded
	}
	return o.kept.clone(), nil
}

// keeps reports whether the outcome still holds its reference.
func (o *Outcome) keeps() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.Result != nil
}

// bytes returns the cost of the result in the budget of tasks.
func (o *Outcome) bytes() int64 {
	if o.discardAfterDelivery {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.Payload.Bytes()
}

// drop releases the reference.
func (o *Outcome) drop(all *objects) {
	o.mu.Lock()
	kept := o.kept
	o.kept = ResultRef{}
	o.mu.Unlock()
	all.dropOutcome(o)
	kept.Release()
}

// Handoff passes the result of a task to the call that waits for it. It holds its own reference, because a full task
// manager drops finished tasks.
type Handoff struct {
	mu   sync.Mutex
	left bool // the waiting call has left
	made *Outcome
	kept ResultRef
}

// Put stores an outcome with a separate reference to its result.
func (h *Handoff) Put(o *Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.left {
		h.made, h.kept = o, o.kept.clone()
	}
}

// Take returns the outcome and a reference to its result, or zero values if there is none. Later calls of Put have no
// effect. The caller releases the result.
func (h *Handoff) Take() (*Outcome, ResultRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = true
	return h.made, h.kept
}

// Storages returns the memory of the result, or nil after drop.
func (o *Outcome) Storages() []*tensor.Storage {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept.Result == nil {
		return nil
	}
	return o.kept.Payload.Storages
}

// Obtain returns the result of one call, as [Engine.Obtain] does.
type Obtain func(ctx context.Context) (res ResultRef, cached bool, err error)

// Submit starts a call as a task. The task passes its result to then if that is not nil. around, if not nil, wraps the
// run. ended is called when the task has ended; it may be nil. Submit takes the arguments.
func (e *Engine) Submit(ctx context.Context, spec task.Spec, d *Definition, a *Arguments, then func(*Outcome), around func(Obtain) Obtain, ended func()) (*task.Task[*Outcome], error) {
	obtain := Obtain(func(ctx context.Context) (ResultRef, bool, error) { return e.Obtain(ctx, d, a) })
	if around != nil {
		obtain = around(obtain)
	}
	spec.Ended = func(err error) {
		a.Drop()                       // if it was cancelled before it ran
		if then == nil && err != nil { // otherwise the waiting call counts the failure
			d.Failures.Add(1)
		}
		if ended != nil {
			ended()
		}
	}
	t, err := e.Tasks.Submit(ctx, spec, func(ctx context.Context) (*Outcome, error) {
		res, cached, err := obtain(ctx)
		if err != nil {
			return nil, err
		}
		id, _ := task.ID(ctx)
		o := &Outcome{Definition: d, task: id, Cached: cached, discardAfterDelivery: then != nil && !d.Options.Managed, kept: res}
		if then != nil {
			then(o)
		}
		return o, nil
	})
	if err != nil {
		a.Drop()
	}
	return t, err
}
