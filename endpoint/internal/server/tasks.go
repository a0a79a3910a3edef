package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// taskOperations implements the operations on submitted tasks.
type taskOperations struct {
	manager *task.Manager[*engine.Outcome]
	calls   *callOperations // delivers their results
}

// deliver returns the reply with a task's result. Each fetch has a separate reference.
func (o *taskOperations) deliver(r *session.Request, t *task.Task[*engine.Outcome]) (session.Reply, error) {
	made, err := t.Result()
	var res engine.ResultRef
	if err == nil {
		res, err = made.Fetch()
	}
	if errors.Is(err, task.ErrDiscarded) {
		if _, gone := o.manager.Get(t.ID()); gone != nil { // it expired since the lookup
			return nil, gone
		}
		return nil, &status.StaleError{
			ObjectID: t.Status().Note, ServerID: o.calls.server, Reason: status.StaleObjectMissing,
			Detail: "it was the result of task " + t.ID(),
		}
	}
	if err != nil {
		return nil, err
	}
	return o.calls.deliver(new(returned), clientOf(r.Session), made.Definition, res, made.Cached, made)
}

// task finds the task of a request. A client has access to its own tasks and to those of endpoints that it may call.
func (o *taskOperations) task(r *session.Request) (*task.Task[*engine.Outcome], uint64, error) {
	var in message.Task
	if err := r.Decode(&in); err != nil {
		return nil, 0, err
	}
	t, err := o.manager.Get(in.ID)
	if err == nil {
		err = mayUse(r.Session, t.Status())
	}
	return t, in.After, err
}

// mayUse returns an error if the client may not use a task.
func mayUse(ses *session.Session, t task.Status) error {
	if t.Owner == ses.ID {
		return nil
	}
	return clientOf(ses).may(access.Call, t.Name)
}

func (o *taskOperations) info(_ context.Context, r *session.Request) (session.Reply, error) {
	t, _, err := o.task(r)
	if err != nil {
		return nil, err
	}
	return &answer{body: encodeTask(t.Status())}, nil
}

// wait answers when the task has ended, or has changed since the client's last request.
func (o *taskOperations) wait(ctx context.Context, r *session.Request) (session.Reply, error) {
	t, after, err := o.task(r)
	if err != nil {
		return nil, err
	}
	if after > 0 {
		status, err := t.Watch(ctx, after)
		if err != nil {
			return nil, err
		}
		return &answer{body: encodeTask(status)}, nil
	}
	err = t.Wait(ctx)
	select {
	case <-t.Done(): // with any outcome
		return &answer{body: encodeTask(t.Status())}, nil
	default:
		return nil, err
	}
}

func (o *taskOperations) result(_ context.Context, r *session.Request) (session.Reply, error) {
	t, _, err := o.task(r)
	if err != nil {
		return nil, err
	}
	return o.deliver(r, t)
}

func (o *taskOperations) cancel(_ context.Context, r *session.Request) (session.Reply, error) {
	t, _, err := o.task(r)
	if err != nil {
		return nil, err
	}
	return &answer{body: message.TaskCancelled{Cancelled: t.Cancel(nil)}}, nil
}

func (o *taskOperations) list(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Tasks
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	filter := task.Filter{Name: in.Endpoint}
	for _, name := range in.States {
		state, err := task.ParseState(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
		}
		filter.States = append(filter.States, state)
	}
	if in.Mine {
		filter.Owner = r.Session.ID
	}
	var out message.TasksListed
	sees := clientOf(r.Session).sees(access.Call)
	for _, status := range o.manager.List(filter) {
		if sees != nil && status.Owner != r.Session.ID && !sees(status.Name) {
			continue
		}
		info := encodeTask(status)
		if info.Error != nil {
			info.Error = brief(info.Error)
		}
		out.Tasks = append(out.Tasks, info)
	}
	return &answer{body: out}, nil
}

// listedError limits the bytes of a task's error in a list, so that long errors do not displace other tasks.
const listedError = 512

// brief returns an error truncated for a list of tasks.
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
	if data, err := message.MarshalShown(details); err == nil && len(data) <= 4*listedError {
		out.Data = data
	}
	return out
}

// encodeTask converts a task to its wire form.
func encodeTask(s task.Status) message.TaskInfo {
	out := message.TaskInfo{
		ID: s.ID, Endpoint: s.Name, State: s.State.String(), Seq: s.Seq, Session: s.Owner, Label: s.Label,
		CreatedAt: nanos(s.CreatedAt), StartedAt: nanos(s.StartedAt), FinishedAt: nanos(s.FinishedAt),
		Done: s.Progress.Done, Total: s.Progress.Total, Message: s.Progress.Message, Object: s.Note,
	}
	if s.Err != nil {
		out.Error = status.EncodeSafely(s.Err)
	}
	return out
}

// nanos converts a time to its wire form; the zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
