package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TaskID identifies a task. It holds no resources.
type TaskID struct {
	// ID identifies the task at its owner.
	ID string
	// conn is the connection of the submission; nil for a task found by its id. The owner that has accepted a task answers
	// requests about it there until it has ended, also while the next owner serves.
	conn *Conn
}

// String describes the task for errors.
func (t *TaskID) String() string { return "task " + message.CutText(t.ID, status.MaxShown) }

// Submit starts a call as a task. It returns errors.ErrUnsupported if the call has a label and the owner does not keep labels.
func (c *Client) Submit(ctx context.Context, call Call) (t TaskID, info message.TaskInfo, err error) {
	err = c.onConn(ctx, func(conn *Conn) error {
		if call.Label != "" && !conn.labels {
			return fmt.Errorf("%w: the owner's version does not keep the labels of tasks", errors.ErrUnsupported)
		}
		err := c.askOn(ctx, conn, message.OpSubmit, call, &info)
		if err == nil {
			conn.submitted(info.ID)
			t = TaskID{info.ID, conn}
		}
		return err
	})
	return t, info, err
}

// CancelQuietly cancels the task on the connection of the submission without waiting. It does nothing if the connection has
// ended.
func (t *TaskID) CancelQuietly() {
	if t.conn != nil {
		t.conn.cancelTask(t.ID)
	}
}

// AskTask sends a request about a task and decodes the answer into out.
func (c *Client) AskTask(ctx context.Context, t *TaskID, op message.Op, out any) error {
	return c.onTask(ctx, t, func(conn *Conn) error {
		return conn.request(ctx, Request{Op: op, Body: message.Task{ID: t.ID}, OfTask: true}, out)
	})
}

// fetchTask is Fetch for the result of a task.
func (c *Client) fetchTask(ctx context.Context, call Call, out any) (ref *Reference, err error) {
	err = c.onTask(ctx, call.Task, func(conn *Conn) (err error) {
		ref, err = c.fetchOn(ctx, conn, call, out)
		if ctx.Err() == nil && conn.settled(call.Task.ID) {
			conn.transport.Close()
		}
		return err
	})
	return ref, err
}

// WatchTask starts to watch one task. The caller closes the result.
func (c *Client) WatchTask(ctx context.Context, t *TaskID) (e *TaskEvents, err error) {
	err = c.onTask(ctx, t, func(conn *Conn) (err error) {
		e, err = watchTasks(ctx, conn, message.WatchTasks{ID: t.ID})
		return err
	})
	return e, err
}

// onTask makes a request about a task on the connection of its submission. If that has ended, it asks the present owner, which
// knows the task only if it is the same one.
func (c *Client) onTask(ctx context.Context, t *TaskID, request func(*Conn) error) error {
	if t.conn != nil && t.conn.answersTasks() {
		if err := request(t.conn); !NotSent(err) {
			return err
		}
	}
	var asked *Conn
	err := c.onConn(ctx, func(conn *Conn) error {
		asked = conn
		return request(conn)
	})
	if t.conn == nil || asked == nil || asked.Server.Server == t.conn.Server.Server || !errors.Is(err, task.ErrNotFound) {
		return err
	}
	was := &status.StaleError{ServerID: t.conn.Server.Server, Reason: status.StaleServerMismatch}
	return status.WithClass(was, fmt.Errorf("%w: its owner %s was replaced, and it is not known whether the task has run", err, message.CutText(was.ServerID, status.MaxShown)))
}
