package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
)

// start starts a call as a task of the session, whose result goes to then if that is not nil. around, if not nil, is
// put around its run. It takes the arguments.
func (o *callOperations) start(ctx context.Context, r request, d *engine.Definition, a *engine.Arguments, then func(*engine.Outcome), around func(engine.Obtain) engine.Obtain) (*task.Task[*engine.Outcome], error) {
	spec := task.Spec{Name: d.Name, Owner: r.Session.ID}
	if !r.Session.Own {
		spec.Limit = o.limits.Tasks
	}
	return o.engine.Submit(ctx, spec, d, a, then, around)
}

// callTask runs a call of a task endpoint: it waits for the task, and cancels it if the caller does not wait any more.
// What the caller has got no task keeps: nobody else knows of it.
func (o *callOperations) callTask(ctx context.Context, r request, d *engine.Definition, a *engine.Arguments) (reply, error) {
	var h engine.Handoff
	t, err := o.start(ctx, r, d, a, h.Put, nil)
	if err != nil {
		return reply{}, err
	}
	err = t.Wait(ctx)
	made, res := h.Take()
	if err != nil {
		if ctx.Err() != nil && !t.Cancel(context.Cause(ctx)) {
			_ = t.Discard() // it has ended meanwhile
		}
		if made != nil {
			res.Release()
		}
		return reply{}, err
	}
	out, err := o.deliver(r, d, res, made.Cached, made)
	if out.Returned.Object == nil { // an object gives up what tasks keep of it when it goes
		_ = t.Discard() // it has ended
	}
	return out, err
}

func (o *callOperations) submit(ctx context.Context, r request) (reply, error) {
	return o.counted(ctx, r, KindSubmit, (*callOperations).submitEndpoint)
}

// submitEndpoint starts a call as a task.
func (o *callOperations) submitEndpoint(ctx context.Context, r request, d *engine.Definition, a *engine.Arguments) (reply, error) {
	if d.Stream != nil {
		a.Drop()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results and cannot be a task", status.ErrInvalid, d.Name)
	}
	t, err := o.start(ctx, r, d, a, nil, o.around(r, d))
	if err != nil {
		return reply{}, err
	}
	return reply{Body: encodeTask(t.Status()), Undo: func() {
		if !t.Cancel(errUnheard) {
			_ = t.Discard() // it has ended already
		}
	}}, nil
}

// errUnheard is why a task is cancelled whose submitter did not wait for the answer: nobody knows its id.
var errUnheard = fmt.Errorf("its submitter did not wait to hear of it: %w", context.Canceled)
