package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Task is a task of an owner: a call that runs in the background. It is a name without resources and needs no Close. Its
// methods are safe for concurrent use.
//
// The owner that accepted a task runs it to its end. While that owner leaves, because another one replaces it, the methods of a
// Task that Submit returned still reach it, until shortly after the end of the last task of the client. If it is gone, they
// return task.ErrNotFound and, if the present owner is another, [ErrStale]: whether the task has run is then not known.
type Task struct {
	// ID identifies the task at its owner.
	ID string
	// Submitted is the state of the task when Submit returned. It is the zero value for a task found by its id.
	Submitted TaskInfo

	of *caller
	at *client.TaskID
}

// Submit implements [Client.Submit].
func (c *caller) Submit(ctx context.Context, name string, in any) (*Task, error) {
	t := &Task{of: c}
	submit := func(ctx context.Context, call client.Call) error {
		at, got, err := c.conn.Submit(ctx, call)
		if err != nil {
			return fmt.Errorf("submit %s: %w", status.Shown(name), err)
		}
		t.ID, t.Submitted, t.at = at.ID, decodeTask(got), &at
		return nil
	}
	var err error
	label, _ := ctx.Value(taskLabelKey{}).(string)
	if call := (client.Call{Name: name, In: in, Label: label}); c.intercept == nil {
		err = submit(ctx, call)
	} else {
		err = c.intercepted(ctx, KindSubmit, call, submit, func() { t.at.CancelQuietly() })
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

type taskLabelKey struct{}

// WithTaskLabel returns a context whose submissions label their tasks: the owner keeps the label with the task, and
// [TaskInfo].Label returns it to all clients. A program that submits tasks for others records in it for whom. The label is UTF-8
// with at most 256 bytes; the owner refuses a longer one. If the owner does not keep labels, Submit fails with
// errors.ErrUnsupported.
func WithTaskLabel(ctx context.Context, label string) context.Context {
	return context.WithValue(ctx, taskLabelKey{}, label)
}

// Task implements [Client.Task].
func (c *caller) Task(id string) *Task { return &Task{ID: id, of: c, at: &client.TaskID{ID: id}} }

// Info describes the current state of the task. It returns task.ErrNotFound if the task is no longer kept.
func (t *Task) Info(ctx context.Context) (TaskInfo, error) {
	return t.info(ctx, message.OpTask)
}

// Wait waits until the task has ended; [TaskInfo.Err] returns its outcome. If ctx or the connection ends, the task
// continues. When ctx ends, Wait returns the task's current state with the cause of ctx, or only its id if the server
// does not answer quickly. A task that waits for itself gets task.ErrSelf.
func (t *Task) Wait(ctx context.Context) (TaskInfo, error) {
	if own, ok := task.ID(ctx); ok && own == t.ID { // an owner cannot detect this for a client's task
		return TaskInfo{}, fmt.Errorf("task %s: %w", t.ID, task.ErrSelf)
	}
	info, err := t.info(ctx, message.OpTaskWait)
	if err == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) { // the server's clock may reach the deadline first
		return info, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	info, lookErr := t.Info(late)
	switch {
	case lookErr != nil:
		return TaskInfo{ID: t.ID}, err
	case info.State.Terminal(): // the task ended at the same moment; prefer its outcome to the error
		return info, nil
	}
	return info, err
}

// lastLook limits the request for the task's state after the context of Wait has ended.
const lastLook = 100 * time.Millisecond

func (t *Task) info(ctx context.Context, op message.Op) (TaskInfo, error) {
	var got message.TaskInfo
	err := waiting(ctx, func() error {
		return t.of.conn.AskTask(ctx, t.at, op, &got)
	})
	if err != nil {
		return TaskInfo{}, fmt.Errorf("task %s: %w", message.CutText(t.ID, status.MaxShown), err)
	}
	return decodeTask(got), nil
}

// Result decodes the result of a completed task into out, a pointer, or drops it if out is nil. It can be called
// repeatedly while the task is kept. Each call returns separate tensors, which the caller closes. Errors:
// task.ErrNotFinished; task.ErrFailed and task.ErrCancelled with the function's error; task.ErrNotFound.
func (t *Task) Result(ctx context.Context, out any) error {
	_, err := t.of.fetch(ctx, client.Call{Task: t.at}, out)
	return err
}

// Cancel cancels the task. A pending task ends at once; the context of a running function is cancelled. It returns false
// if the task had already ended.
func (t *Task) Cancel(ctx context.Context) (bool, error) {
	var got message.TaskCancelled
	if err := t.of.conn.AskTask(ctx, t.at, message.OpTaskCancel, &got); err != nil {
		return false, fmt.Errorf("cancel task %s: %w", message.CutText(t.ID, status.MaxShown), err)
	}
	return got.Cancelled, nil
}

// Events follows the task: first its current state, then each change of state or progress, finally its end. A slow loop
// skips progress but no states. An error is the last pair, with the last known state. Leaving the loop does not affect
// the task.
func (t *Task) Events(ctx context.Context) iter.Seq2[TaskInfo, error] {
	return func(yield func(TaskInfo, error) bool) {
		var last TaskInfo
		watch := func() (*client.TaskEvents, error) { return t.of.conn.WatchTask(ctx, t.at) }
		for e, err := range taskEvents(ctx, watch, nil) {
			if err != nil {
				yield(last, fmt.Errorf("task %s: %w", message.CutText(t.ID, status.MaxShown), err))
				return
			}
			if e.Kind == TasksMissed {
				continue
			}
			if last = e.Task; !yield(last, nil) || last.State.Terminal() {
				return
			}
		}
	}
}
