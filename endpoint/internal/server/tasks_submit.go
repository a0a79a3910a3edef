package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// start starts the call as a task of the session. If then is not nil, it receives the result. If around is not nil, it
// wraps the run. start takes ownership of the arguments. ended is called when the task has ended; it may be nil.
func (c *call) start(ctx context.Context, a *engine.Arguments, then func(*engine.Outcome), around func(engine.Obtain) engine.Obtain, ended func()) (*task.Task[*engine.Outcome], error) {
	ses := c.client.session
	spec := task.Spec{Name: c.callee.Name, Owner: ses.ID, Label: c.parts.Label}
	if !ses.Own {
		spec.Limit = c.tasks
	}
	t, err := c.engine.Submit(ctx, spec, c.callee, a, then, around, ended)
	if errors.Is(err, task.ErrShutdown) {
		if ses.Own {
			return nil, status.WithClass(status.ErrUnavailable, err)
		}
		return nil, fmt.Errorf("submit task %q: %w", spec.Name, status.ErrLeaving) // the client submits it to the next owner
	}
	return t, err
}

// callTask runs a call of a task endpoint. It waits for the task, and cancels it if the caller leaves. The task drops a
// delivered result, because other clients do not have the task's id.
func (c *call) callTask(ctx context.Context, a *engine.Arguments) (session.Reply, error) {
	c.parts.Label = "" // only submissions have one
	var h engine.Handoff
	t, err := c.start(ctx, a, h.Put, nil, nil)
	if err != nil {
		return nil, err
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
		return nil, err
	}
	out, err := c.deliver(&c.out, c.client, c.callee, res, made.Cached, made)
	if c.out.message.Object == nil { // destroying an object also drops the results that tasks keep of it
		_ = t.Discard() // it has ended
	}
	return out, err
}

func (c *call) submit(ctx context.Context) (session.Reply, error) {
	return c.counted(ctx, true, (*call).submitEndpoint)
}

// submitEndpoint starts a call as a task.
func (c *call) submitEndpoint(ctx context.Context, a *engine.Arguments) (session.Reply, error) {
	if d := c.callee; d.Stream != nil {
		a.Drop()
		return nil, fmt.Errorf("%w: endpoint %q streams its results and cannot be a task", status.ErrInvalid, d.Name)
	}
	if n := len(c.parts.Label); n > message.MaxTaskLabel {
		a.Drop()
		return nil, fmt.Errorf("%w: the label of the task has %d bytes, at most %d are possible", status.ErrInvalid, n, message.MaxTaskLabel)
	}
	// The submitter follows the task and fetches its result here, also while the server leaves.
	release := c.client.session.KeepOpen()
	t, err := c.start(ctx, a, nil, c.around(), release)
	if err != nil {
		release()
		return nil, err
	}
	return &answer{body: encodeTask(t.Status()), undo: func() {
		if !t.Cancel(errUnheard) {
			_ = t.Discard() // it has ended
		}
	}}, nil
}

// errUnheard is the cause if a task is cancelled because its submitter left before it received the id.
var errUnheard = fmt.Errorf("its submitter left before it received the task's id: %w", context.Canceled)
