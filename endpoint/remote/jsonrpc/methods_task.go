package jsonrpc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/task"
)

// taskParams identifies a task.
type taskParams struct {
	TaskID string `json:"task_id"`
	// Timeout is the maximum wait of wait_task, in seconds. 0 waits until the task has ended.
	Timeout float64 `json:"timeout,omitempty"`
	// Tensors selects how get_task_result returns tensors: "inline" (the default) or "url".
	Tensors string `json:"tensors,omitempty"`
}

// submitTask starts a call as a task. The task continues after the request, and after the gateway stops. Its label is the sender, so
// that every gateway of the owner knows whose it is.
func (c *Component) submitTask(ctx context.Context, p *callParams) (info endpoint.TaskInfo, err error) {
	prepared, err := c.prepare(ctx, p)
	defer func() { err = errors.Join(err, prepared.held.close()) }()
	if err != nil {
		return info, err
	}
	ctx, unbind := c.bind(ctx, prepared.caller)
	defer unbind()
	if label := rights.Sender(ctx).TaskLabel(); label != "" {
		ctx = endpoint.WithTaskLabel(ctx, label)
	}
	started, err := prepared.caller.Submit(ctx, prepared.info.Name, prepared.in)
	if err != nil {
		return info, outcomeOf(ctx, err)
	}
	return started.Submitted, nil
}

// findTask returns a task of the sender and the caller that has it.
func (c *Component) findTask(ctx context.Context, id string) (endpoint.Caller, endpoint.TaskInfo, error) {
	if id == "" {
		return nil, endpoint.TaskInfo{}, fmt.Errorf("%w: task_id is missing", models.ErrParams)
	}
	callers := c.env.Owner.Callers()
	if len(callers) == 0 {
		_, err := c.env.Owner.Client()
		return nil, endpoint.TaskInfo{}, err
	}
	var err error
	for _, caller := range callers {
		var info endpoint.TaskInfo
		bound, unbind := c.bind(ctx, caller)
		info, err = caller.Task(id).Info(bound)
		unbind()
		if err == nil {
			if err = c.env.Allow(ctx, access.Call, info.Endpoint); err == nil {
				err = rights.Sender(ctx).AllowTask(id, info.Label)
			}
			return caller, info, err
		}
		if !errors.Is(err, task.ErrNotFound) {
			break
		}
	}
	return nil, endpoint.TaskInfo{}, err
}

func (c *Component) taskStatus(ctx context.Context, p *taskParams) (endpoint.TaskInfo, error) {
	_, info, err := c.findTask(ctx, p.TaskID)
	if err != nil {
		return endpoint.TaskInfo{}, err
	}
	return info, nil
}

// waitTask waits until a task has ended. If the timeout expires or the gateway stops, it returns the current state
// without an error.
func (c *Component) waitTask(ctx context.Context, p *taskParams) (endpoint.TaskInfo, error) {
	caller, info, err := c.findTask(ctx, p.TaskID)
	if err != nil {
		return info, err
	}
	waiting, cancel := withTimeout(ctx, max(p.Timeout, 0))
	defer cancel()
	waiting, done := c.env.Wait(waiting)
	defer done()
	waiting, unbind := c.bind(waiting, caller)
	defer unbind()
	end, err := caller.Task(p.TaskID).Wait(waiting)
	stopping := err != nil && errors.Is(context.Cause(waiting), gateway.ErrDraining)
	if (stopping || errors.Is(err, context.DeadlineExceeded)) && ctx.Err() == nil { // the owner's clock may expire first
		if end.State == "" {
			end = info
		}
		return end, nil
	}
	return end, err
}

func (c *Component) taskResult(ctx context.Context, p *taskParams) (out any, err error) {
	caller, _, err := c.findTask(ctx, p.TaskID)
	if err != nil {
		return nil, err
	}
	ctx, unbind := c.bind(ctx, caller)
	defer unbind()
	var v any
	err = caller.Task(p.TaskID).Result(ctx, &v)
	defer func() { err = errors.Join(err, closeTensors(v)) }()
	if err != nil {
		return nil, err
	}
	return c.outgoing(ctx, p.Tensors).value(v, 0)
}

// cancelledTask is the result of cancel_task.
type cancelledTask struct {
	TaskID    string `json:"task_id"`
	Cancelled bool   `json:"cancelled"`
}

func (c *Component) cancelTask(ctx context.Context, p *taskParams) (cancelledTask, error) {
	out := cancelledTask{TaskID: p.TaskID}
	caller, info, err := c.findTask(ctx, p.TaskID)
	if err != nil {
		return out, err
	}
	ctx, unbind := c.bind(ctx, caller)
	defer unbind()
	out.Cancelled, err = caller.Task(p.TaskID).Cancel(ctx)
	if err == nil {
		c.env.Audited(ctx, gateway.ChangeCancel, "task", p.TaskID, "function", info.Endpoint)
	}
	return out, err
}

// listParams filters tasks.
type listParams struct {
	// Status is pending, running, completed, failed or cancelled. Empty means all.
	Status string `json:"status,omitempty"`
	// Function selects the tasks of one function.
	Function string `json:"function,omitempty"`
}

// taskList is the result of list_tasks, in submission order.
type taskList struct {
	Tasks []endpoint.TaskInfo `json:"tasks"`
}

func (c *Component) listTasks(ctx context.Context, p *listParams) (taskList, error) {
	out := taskList{Tasks: []endpoint.TaskInfo{}}
	if err := c.env.Allow(ctx, access.Call, ""); err != nil {
		return out, err
	}
	filter := endpoint.TaskFilter{}
	if p != nil {
		filter.Endpoint = p.Function
		switch state := endpoint.TaskState(p.Status); state {
		case "":
		case endpoint.TaskPending, endpoint.TaskRunning, endpoint.TaskCompleted, endpoint.TaskFailed, endpoint.TaskCancelled:
			filter.States = []endpoint.TaskState{state}
		default:
			return out, fmt.Errorf("%w: status is pending, running, completed, failed or cancelled, not %q", models.ErrParams, p.Status)
		}
	}
	callers := c.env.Owner.Callers()
	if len(callers) == 0 {
		_, err := c.env.Owner.Client()
		return out, err
	}
	for _, caller := range callers {
		bound, unbind := c.bind(ctx, caller)
		list, err := caller.Tasks(bound, filter)
		unbind()
		if err != nil {
			return out, err
		}
		out.Tasks = append(out.Tasks, list...)
	}
	out.Tasks = rights.Filter(rights.Sender(ctx), access.Call, out.Tasks, func(t endpoint.TaskInfo) string { return t.Endpoint })
	out.Tasks = slices.DeleteFunc(out.Tasks, func(t endpoint.TaskInfo) bool { return rights.Sender(ctx).AllowTask(t.ID, t.Label) != nil })
	return out, nil
}
