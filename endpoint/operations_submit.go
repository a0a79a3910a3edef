package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
)

// start starts a call as a task of the session. If then is not nil, it receives the result. If around is not nil, it
// wraps the run. start takes ownership of the arguments.
func (o *callOperations) start(ctx context.Context, r request, d *engine.Definition, a *engine.Arguments, then func(*engine.Outcome), around func(engine.Obtain) engine.Obtain) (*task.Task[*engine.Outcome], error) {
	spec := task.Spec{Name: d.Name, Owner: r.Session.ID}
	if !r.Session.Own {
		spec.Limit = o.limits.Tasks
	}
	return o.engine.Submit(ctx, spec, d, a, then, around)
}

// callTask runs a call of a task endpoint. It waits for the task, and cancels it if the caller leaves. The task drops a
// delivered result, because other clients do not have the task's id.
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
	if out.Returned.Object == nil { // destroying an object also drops the results that tasks keep of it
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
			_ = t.Discard() // it has ended
		}
	}}, nil
}

// errUnheard is the cause if a task is cancelled because its submitter left before it received the id.
var errUnheard = fmt.Errorf("its submitter left before it received the task's id: %w", context.Canceled)
