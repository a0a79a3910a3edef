package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Outcome is the result of a task. It has a reference to the result, until the task gives it up: because it is dropped,
// because the managed object that the result is is gone, or because the one call that wanted it has got it.
type Outcome struct {
	Definition *Definition // of the endpoint
	task       string      // its id
	Cached     bool        // it was found in the cache
	passing    bool        // the one call that wants it discards it when it has it
	object     *Object     // that the result is, if that is known; guarded by objects.mu

	mu   sync.Mutex
	kept ResultRef // nothing when it was given up
}

// Fetch returns another reference to the result.
func (o *Outcome) Fetch() (ResultRef, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept.Result == nil {
		return ResultRef{}, task.ErrDiscarded
	}
	return o.kept.again(), nil
}

// keeps reports whether the outcome has its reference.
func (o *Outcome) keeps() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.Result != nil
}

// bytes is what the result costs the tasks that are kept.
func (o *Outcome) bytes() int64 {
	if o.passing {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.Payload.Bytes()
}

// drop gives the reference up.
func (o *Outcome) drop(all *objects) {
	o.mu.Lock()
	kept := o.kept
	o.kept = ResultRef{}
	o.mu.Unlock()
	all.dropOutcome(o)
	kept.Release()
}

// Handoff carries the result of a task to the call that waits for it, whatever becomes of the task meanwhile: a manager
// that is full drops what has finished.
type Handoff struct {
	mu   sync.Mutex
	left bool // nobody waits any more
	made *Outcome
	kept ResultRef
}

// Put hands an outcome over; the handoff gets a reference of its own.
func (h *Handoff) Put(o *Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.left {
		h.made, h.kept = o, o.kept.again()
	}
}

// Take returns the outcome and a reference to its result, nothing if none came, and ends the handoff. The caller
// releases the result.
func (h *Handoff) Take() (*Outcome, ResultRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = true
	return h.made, h.kept
}

// Storages is the memory of the result; none when it was given up.
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

// Submit starts a call as a task, whose result goes to then if that is not nil. around, if not nil, is put around the
// run. It takes the arguments.
func (e *Engine) Submit(ctx context.Context, spec task.Spec, d *Definition, a *Arguments, then func(*Outcome), around func(Obtain) Obtain) (*task.Task[*Outcome], error) {
	obtain := Obtain(func(ctx context.Context) (ResultRef, bool, error) { return e.Obtain(ctx, d, a) })
	if around != nil {
		obtain = around(obtain)
	}
	t, err := e.Tasks.Submit(ctx, spec, func(ctx context.Context) (*Outcome, error) {
		res, cached, err := obtain(ctx)
		if err != nil {
			return nil, err
		}
		id, _ := task.ID(ctx)
		o := &Outcome{Definition: d, task: id, Cached: cached, passing: then != nil && !d.Options.Managed, kept: res}
		if then != nil {
			then(o)
		}
		return o, nil
	})
	if err != nil {
		a.Drop()
		if errors.Is(err, task.ErrShutdown) { // to whoever asks it is an owner that is going
			err = status.WithClass(status.ErrUnavailable, err)
		}
		return nil, err
	}
	go func() {
		<-t.Done()
		a.Drop()                           // cancelled before it ran
		if then == nil && t.Err() != nil { // else the call that waits for it fails
			d.Failures.Add(1)
		}
	}()
	return t, nil
}
