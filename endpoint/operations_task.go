package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// outcome is the result of a task. It has a reference to the result.
type outcome struct {
	definition *definition
	result     *result
	key        cache.Key
	keyed      bool
	cached     bool
}

func shareOutcome(o *outcome) (*outcome, error) {
	shared := *o
	shared.result = o.result.retain()
	return &shared, nil
}

func releaseOutcome(o *outcome) { o.result.release() }

// submit starts a call as a task of the session. It takes the arguments.
func (r request) submit(ctx context.Context, d *definition, a *arguments) (*task.Task[*outcome], error) {
	s := r.session.server
	spec := task.Spec{Name: d.name, Owner: r.session.id}
	key, keyed := d.key(a)
	t, err := s.tasks.Submit(ctx, spec, func(ctx context.Context) (*outcome, error) {
		res, cached, err := s.obtain(ctx, d, a, key, keyed)
		if err != nil {
			return nil, err
		}
		return &outcome{definition: d, result: res, key: key, keyed: keyed, cached: cached}, nil
	})
	if err != nil {
		a.close()
		return nil, err
	}
	go func() {
		<-t.Done()
		if a.claim() { // cancelled before it ran
			a.close()
		}
	}()
	return t, nil
}

// callTask runs a call of a task endpoint: it waits for the task, and cancels it if the caller does not wait any more.
func (r request) callTask(ctx context.Context, d *definition, a *arguments) (reply, error) {
	t, err := r.submit(ctx, d, a)
	if err != nil {
		return reply{}, err
	}
	if err := t.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			t.Cancel(context.Cause(ctx))
		}
		return reply{}, err
	}
	return r.taskResult(t)
}

// taskResult is the reply that carries a task's result: each fetch has a reference of its own.
func (r request) taskResult(t *task.Task[*outcome]) (reply, error) {
	o, err := t.Result()
	if err != nil {
		return reply{}, err
	}
	return r.deliver(o.definition, o.result, o.key, o.keyed, o.cached)
}

func doSubmit(ctx context.Context, r request) (reply, error) {
	d, a, err := r.prepare()
	if err != nil {
		return reply{}, err
	}
	if d.stream != nil {
		a.close()
		return reply{}, fmt.Errorf("%w: endpoint %q streams its results and cannot be a task", ErrInvalid, d.name)
	}
	t, err := r.submit(ctx, d, a)
	if err != nil {
		return reply{}, err
	}
	return reply{body: encodeTask(t.Status())}, nil
}

// task finds the task that a request is about.
func (r request) task() (*task.Task[*outcome], uint64, error) {
	var in wire.Task
	if err := r.decode(&in); err != nil {
		return nil, 0, err
	}
	t, err := r.session.server.tasks.Get(in.ID)
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
	select {
	case <-t.Done():
		return reply{body: encodeTask(t.Status())}, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
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
	return reply{body: wire.TaskCancelled{Cancelled: t.Cancel(nil)}}, nil
}

func doTasks(_ context.Context, r request) (reply, error) {
	var in wire.Tasks
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	filter := task.Filter{Name: in.Endpoint}
	for _, name := range in.States {
		state, err := task.ParseState(name)
		if err != nil {
			return reply{}, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		filter.States = append(filter.States, state)
	}
	if in.Mine {
		filter.Owner = r.session.id
	}
	var out wire.TasksListed
	for _, status := range r.session.server.tasks.List(filter) {
		out.Tasks = append(out.Tasks, encodeTask(status))
	}
	return reply{body: out}, nil
}

// encodeTask is a task as it crosses.
func encodeTask(s task.Status) wire.TaskInfo {
	out := wire.TaskInfo{
		ID: s.ID, Endpoint: s.Name, State: s.State.String(), Seq: s.Seq, Session: s.Owner,
		CreatedAt: nanos(s.CreatedAt), StartedAt: nanos(s.StartedAt), FinishedAt: nanos(s.FinishedAt),
		Done: s.Progress.Done, Total: s.Progress.Total, Message: s.Progress.Message,
	}
	if s.Err != nil {
		out.Error = encodeError(s.Err)
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

// taskErrors are the errors of tasks by the word that tells them apart under their one code.
var taskErrors = []struct {
	word string
	err  error
}{
	{"failed", task.ErrFailed},
	{"cancelled", task.ErrCancelled},
	{"not found", task.ErrNotFound},
	{"not complete", task.ErrNotFinished},
	{"capacity", task.ErrCapacity},
	{"shutting down", task.ErrShutdown},
}

// taskWord is the word for an error of a task; empty for others.
func taskWord(err error) string {
	for _, row := range taskErrors {
		if errors.Is(err, row.err) {
			return row.word
		}
	}
	return ""
}
