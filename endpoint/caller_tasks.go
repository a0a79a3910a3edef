package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/calls"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Submit starts a call as a task, which any endpoint can be but a stream, and returns at once with what is known of it.
// Once it has returned, the task outlives ctx and the connection; a task of which the caller did not get to hear,
// because ctx ended first, is cancelled. Its arguments are shared as for Call. Errors: [ErrNoEndpoint],
// task.ErrCapacity, task.ErrShutdown.
func (c *caller) Submit(ctx context.Context, name string, in any) (TaskInfo, error) {
	if c.to.intercept == nil {
		return c.submit(ctx, calls.Call{Name: name, In: in})
	}
	var info TaskInfo
	err := c.to.intercepted(ctx, KindSubmit, name, in, func(ctx context.Context, with Metadata) (err error) {
		info, err = c.submit(ctx, calls.Call{Name: name, In: in, Metadata: with})
		return err
	}, func() { _, _ = c.Cancel(context.WithoutCancel(ctx), info.ID) })
	if err != nil {
		return TaskInfo{}, err
	}
	return info, nil
}

func (c *caller) submit(ctx context.Context, f calls.Call) (TaskInfo, error) {
	var got message.TaskInfo
	if err := c.to.invoker.Ask(ctx, message.OpSubmit, f, &got); err != nil {
		return TaskInfo{}, fmt.Errorf("submit %s: %w", status.Shown(f.Name), err)
	}
	return decodeTask(got), nil
}

// Task describes a task as it is now. One that is not known, or not kept any more, is task.ErrNotFound.
func (c *caller) Task(ctx context.Context, id string) (TaskInfo, error) {
	return c.task(ctx, message.OpTask, message.Task{ID: id})
}

// Wait waits for the end of a task, however it ends: [TaskInfo.Err] tells how. When ctx ends, or the connection, the
// task goes on. When ctx ends it returns what is known of the task then, beside the cause of ctx; a server that does
// not say so at once leaves only the id. A task that waits for itself gets task.ErrSelf.
func (c *caller) Wait(ctx context.Context, id string) (TaskInfo, error) {
	if own, ok := task.ID(ctx); ok && own == id { // an owner could not know it of a client
		return TaskInfo{}, fmt.Errorf("task %s: %w", id, task.ErrSelf)
	}
	info, err := c.task(ctx, message.OpTaskWait, message.Task{ID: id})
	if err == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) { // the server's clock may be the first to tell
		return info, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	info, lookErr := c.Task(late, id)
	switch {
	case lookErr != nil:
		return TaskInfo{ID: id}, err
	case info.State.Terminal(): // it came at the same moment, and says more than the error
		return info, nil
	}
	return info, err
}

// lastLook is how long Wait asks how a task stands when its context has ended.
const lastLook = 100 * time.Millisecond

func (c *caller) task(ctx context.Context, op message.Op, body message.Task) (TaskInfo, error) {
	var got message.TaskInfo
	err := waiting(ctx, func() error { return c.to.conn.Request(ctx, link.Request{Op: op, Body: body}, &got) })
	if err != nil {
		return TaskInfo{}, fmt.Errorf("task %s: %w", message.CutText(body.ID, status.MaxShown), err)
	}
	return decodeTask(got), nil
}

// Result decodes the result of a task that has completed into out, a pointer, or drops it where out is nil. It can be
// fetched as often as the task is kept: each fetch is another result, whose tensors its caller closes. Errors:
// task.ErrNotFinished, task.ErrFailed and task.ErrCancelled with what the function returned, task.ErrNotFound.
func (c *caller) Result(ctx context.Context, id string, out any) error {
	return c.to.get(ctx, calls.Call{Task: id}, out)
}

// Cancel cancels a task: one that waits ends at once, the function of one that runs is told to stop. It is false for a
// task that had ended.
func (c *caller) Cancel(ctx context.Context, id string) (bool, error) {
	var got message.TaskCancelled
	if err := c.to.conn.Request(ctx, link.Request{Op: message.OpTaskCancel, Body: message.Task{ID: id}}, &got); err != nil {
		return false, fmt.Errorf("cancel task %s: %w", message.CutText(id, status.MaxShown), err)
	}
	return got.Cancelled, nil
}

// Tasks lists the tasks that the filter selects, in the order in which they were submitted. Their errors are those of
// Task, cut where they are long.
func (c *caller) Tasks(ctx context.Context, filter TaskFilter) ([]TaskInfo, error) {
	ask := message.Tasks{Endpoint: filter.Endpoint, Mine: filter.Mine}
	for _, s := range filter.States {
		ask.States = append(ask.States, string(s))
	}
	var got message.TasksListed
	if err := c.to.conn.Request(ctx, link.Request{Op: message.OpTasks, Body: ask}, &got); err != nil {
		return nil, fmt.Errorf("tasks: %w", err)
	}
	list := make([]TaskInfo, 0, len(got.Tasks))
	for _, t := range got.Tasks {
		list = append(list, decodeTask(t))
	}
	return list, nil
}
