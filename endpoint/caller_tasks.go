package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Submit starts a call as a task and returns at once with its status. Any endpoint except a stream can run as a task.
// After Submit has returned, the task outlives ctx and the connection. If ctx ends before the caller has the task's id,
// the task is cancelled. Its arguments are shared as in Call. Errors: [ErrNoEndpoint], task.ErrCapacity,
// task.ErrShutdown.
func (c *caller) Submit(ctx context.Context, name string, in any) (TaskInfo, error) {
	var info TaskInfo
	var cancel func()
	submit := func(ctx context.Context, call client.Call) error {
		got, undo, err := c.conn.Submit(ctx, call)
		if err != nil {
			return fmt.Errorf("submit %s: %w", status.Shown(name), err)
		}
		info, cancel = decodeTask(got), undo
		return nil
	}
	call := client.Call{Name: name, In: in}
	if c.intercept == nil {
		err := submit(ctx, call)
		return info, err
	}
	if err := c.intercepted(ctx, KindSubmit, call, submit, func() { cancel() }); err != nil {
		return TaskInfo{}, err
	}
	return info, nil
}

// Task describes the current state of a task. It returns task.ErrNotFound if the id is unknown or the task is no longer
// kept.
func (c *caller) Task(ctx context.Context, id string) (TaskInfo, error) {
	return c.task(ctx, message.OpTask, message.Task{ID: id})
}

// Wait waits until a task has ended; [TaskInfo.Err] returns its outcome. If ctx or the connection ends, the task
// continues. When ctx ends, Wait returns the task's current state with the cause of ctx, or only its id if the server
// does not answer quickly. A task that waits for itself gets task.ErrSelf.
func (c *caller) Wait(ctx context.Context, id string) (TaskInfo, error) {
	if own, ok := task.ID(ctx); ok && own == id { // an owner cannot detect this for a client's task
		return TaskInfo{}, fmt.Errorf("task %s: %w", id, task.ErrSelf)
	}
	info, err := c.task(ctx, message.OpTaskWait, message.Task{ID: id})
	if err == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) { // the server's clock may reach the deadline first
		return info, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	info, lookErr := c.Task(late, id)
	switch {
	case lookErr != nil:
		return TaskInfo{ID: id}, err
	case info.State.Terminal(): // the task ended at the same moment; prefer its outcome to the error
		return info, nil
	}
	return info, err
}

// lastLook limits the request for the task's state after the context of Wait has ended.
const lastLook = 100 * time.Millisecond

func (c *caller) task(ctx context.Context, op message.Op, body message.Task) (TaskInfo, error) {
	var got message.TaskInfo
	err := waiting(ctx, func() error { return c.conn.Request(ctx, client.Request{Op: op, Body: body}, &got) })
	if err != nil {
		return TaskInfo{}, fmt.Errorf("task %s: %w", message.CutText(body.ID, status.MaxShown), err)
	}
	return decodeTask(got), nil
}

// Result decodes the result of a completed task into out, a pointer, or drops it if out is nil. It can be called
// repeatedly while the task is kept. Each call returns separate tensors, which the caller closes. Errors:
// task.ErrNotFinished; task.ErrFailed and task.ErrCancelled with the function's error; task.ErrNotFound.
func (c *caller) Result(ctx context.Context, id string, out any) error {
	_, err := c.fetch(ctx, client.Call{Task: id}, out)
	return err
}

// Cancel cancels a task. A pending task ends at once; the context of a running function is cancelled. It returns false
// if the task had already ended.
func (c *caller) Cancel(ctx context.Context, id string) (bool, error) {
	var got message.TaskCancelled
	if err := c.conn.Request(ctx, client.Request{Op: message.OpTaskCancel, Body: message.Task{ID: id}}, &got); err != nil {
		return false, fmt.Errorf("cancel task %s: %w", message.CutText(id, status.MaxShown), err)
	}
	return got.Cancelled, nil
}

// Tasks lists the tasks that the filter selects, in order of submission. Their errors are those of Task, truncated if
// they are long.
func (c *caller) Tasks(ctx context.Context, filter TaskFilter) ([]TaskInfo, error) {
	ask := message.Tasks{Endpoint: filter.Endpoint, Mine: filter.Mine}
	for _, s := range filter.States {
		ask.States = append(ask.States, string(s))
	}
	var got message.TasksListed
	if err := c.conn.Request(ctx, client.Request{Op: message.OpTasks, Body: ask}, &got); err != nil {
		return nil, fmt.Errorf("tasks: %w", err)
	}
	list := make([]TaskInfo, 0, len(got.Tasks))
	for _, t := range got.Tasks {
		list = append(list, decodeTask(t))
	}
	return list, nil
}
