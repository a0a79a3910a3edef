package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// submit starts a call as a task of the session, whose result goes to then if that is not nil. around, if not nil, is
// put around its run. It takes the arguments.
func (r request) submit(ctx context.Context, d *engine.Definition, a *engine.Arguments, then func(*engine.Outcome), around func(engine.Obtain) engine.Obtain) (*task.Task[*engine.Outcome], error) {
	s := r.session.server
	spec := task.Spec{Name: d.Name, Owner: r.session.id}
	if !r.session.own {
		spec.Limit = s.opts.Limits.Tasks
	}
	return s.engine.Submit(ctx, spec, d, a, then, around)
}

// callTask runs a call of a task endpoint: it waits for the task, and cancels it if the caller does not wait any more.
// What the caller has got no task keeps: nobody else knows of it.
func (r request) callTask(ctx context.Context, d *engine.Definition, a *engine.Arguments) (reply, error) {
	var h engine.Handoff
	t, err := r.submit(ctx, d, a, h.Put, nil)
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
	out, err := r.deliver(d, res, made.Cached, made)
	if out.returned.Object == nil { // an object gives up what tasks keep of it when it goes
		_ = t.Discard() // it has ended
	}
	return out, err
}

// taskResult is the reply that carries a task's result: each fetch has a reference of its own.
func (r request) taskResult(t *task.Task[*engine.Outcome]) (reply, error) {
	o, err := t.Result()
	var res engine.ResultRef
	if err == nil {
		res, err = o.Fetch()
	}
	if errors.Is(err, task.ErrDiscarded) {
		if _, gone := r.session.server.engine.Tasks.Get(t.ID()); gone != nil { // its time ran out since it was looked for
			return reply{}, gone
		}
		return reply{}, &status.StaleError{
			ObjectID: t.Status().Note, ServerID: r.session.server.id, Reason: status.StaleObjectMissing,
			Detail: "it was the result of task " + t.ID(),
		}
	}
	if err != nil {
		return reply{}, err
	}
	return r.deliver(o.Definition, res, o.Cached, o)
}

func doSubmit(ctx context.Context, r request) (reply, error) {
	return r.counted(ctx, KindSubmit, request.submitEndpoint)
}

// submitEndpoint starts a call as a task.
func (r request) submitEndpoint(ctx context.Context, d *engine.Definition, a *engine.Arguments) (reply, error) {
	if d.Stream != nil {
		a.Drop()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results and cannot be a task", status.ErrInvalid, d.Name)
	}
	t, err := r.submit(ctx, d, a, nil, r.around(d))
	if err != nil {
		return reply{}, err
	}
	return reply{body: encodeTask(t.Status()), undo: func() {
		if !t.Cancel(errUnheard) {
			_ = t.Discard() // it has ended already
		}
	}}, nil
}

// errUnheard is why a task is cancelled whose submitter did not wait for the answer: nobody knows its id.
var errUnheard = fmt.Errorf("its submitter did not wait to hear of it: %w", context.Canceled)

// task finds the task that a request is about.
func (r request) task() (*task.Task[*engine.Outcome], uint64, error) {
	var in message.Task
	if err := r.decode(&in); err != nil {
		return nil, 0, err
	}
	t, err := r.session.server.engine.Tasks.Get(in.ID)
	return t, in.After, err
}

func doTask(_ context.Context, r request) (reply, error) {
	t, _, err := r.task()
	if err != nil {
		return reply{}, err
	}
	return reply{body: encodeTask(t.Status())}, nil
}

// doTaskWait answers when the task has ended, or has changed since the client looked last.
func doTaskWait(ctx context.Context, r request) (reply, error) {
	t, after, err := r.task()
	if err != nil {
		return reply{}, err
	}
	if after > 0 {
		status, err := t.Watch(ctx, after)
		if err != nil {
			return reply{}, err
		}
		return reply{body: encodeTask(status)}, nil
	}
	err = t.Wait(ctx)
	select {
	case <-t.Done(): // however it ended
		return reply{body: encodeTask(t.Status())}, nil
	default:
		return reply{}, err
	}
}

func doTaskResult(_ context.Context, r request) (reply, error) {
	t, _, err := r.task()
	if err != nil {
		return reply{}, err
	}
	return r.taskResult(t)
}

func doTaskCancel(_ context.Context, r request) (reply, error) {
	t, _, err := r.task()
	if err != nil {
		return reply{}, err
	}
	return reply{body: message.TaskCancelled{Cancelled: t.Cancel(nil)}}, nil
}

func doTasks(_ context.Context, r request) (reply, error) {
	var in message.Tasks
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	filter := task.Filter{Name: in.Endpoint}
	for _, name := range in.States {
		state, err := task.ParseState(name)
		if err != nil {
			return reply{}, fmt.Errorf("%w: %w", status.ErrInvalid, err)
		}
		filter.States = append(filter.States, state)
	}
	if in.Mine {
		filter.Owner = r.session.id
	}
	var out message.TasksListed
	for _, status := range r.session.server.engine.Tasks.List(filter) {
		info := encodeTask(status)
		if info.Error != nil {
			info.Error = brief(info.Error)
		}
		out.Tasks = append(out.Tasks, info)
	}
	return reply{body: out}, nil
}

// listedError is how many bytes the error of a task has in a list, and its cause: one that says a lot must not keep the
// others from being listed.
const listedError = 512

// brief is an error as it stands in a list of tasks.
func brief(e *message.Error) *message.Error {
	if len(e.Message)+len(e.Data) <= 2*listedError {
		return e
	}
	details := e.Details()
	if c := details.Cause; c != nil {
		details.Cause = &message.Error{Code: c.Code, Type: c.Type, Message: message.CutText(c.Message, listedError)}
	}
	details.Detail = message.CutText(details.Detail, listedError)
	out := &message.Error{Code: e.Code, Type: e.Type, Message: message.CutText(e.Message, listedError)}
	if data, err := message.Marshal(details); err == nil && len(data) <= 4*listedError {
		out.Data = data
	}
	return out
}

// encodeTask is a task as it crosses.
func encodeTask(s task.Status) message.TaskInfo {
	out := message.TaskInfo{
		ID: s.ID, Endpoint: s.Name, State: s.State.String(), Seq: s.Seq, Session: s.Owner,
		CreatedAt: nanos(s.CreatedAt), StartedAt: nanos(s.StartedAt), FinishedAt: nanos(s.FinishedAt),
		Done: s.Progress.Done, Total: s.Progress.Total, Message: s.Progress.Message, Object: s.Note,
	}
	if s.Err != nil {
		out.Error = status.EncodeSafely(s.Err)
	}
	return out
}

// nanos is a time as it crosses; the zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
