package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TaskEventKind is the kind of a [TaskEvent].
type TaskEventKind string

// The kinds of task events.
const (
	// TaskListed reports a task's current state, at the start and after TasksMissed.
	TaskListed TaskEventKind = "listed"
	// TaskChanged reports a new task, or a change of a task's state or progress.
	TaskChanged TaskEventKind = "changed"
	// TasksMissed reports that a slow loop missed changes. All tasks are listed again.
	TasksMissed TaskEventKind = "missed"
	// TaskLost reports a task that had not ended when its server did. The watch ends after it.
	TaskLost TaskEventKind = "lost"
)

// TaskEvent is one event of a watch of tasks.
type TaskEvent struct {
	// Kind is the kind of the event.
	Kind TaskEventKind
	// Task is the task at that time; the zero value if Kind is TasksMissed.
	Task TaskInfo
}

// WatchTasks implements [Client.WatchTasks].
func (c *caller) WatchTasks(ctx context.Context, filter TaskFilter) iter.Seq2[TaskEvent, error] {
	return func(yield func(TaskEvent, error) bool) {
		shown := map[string]bool{} // tasks that were reported in one of the states
		var open openTasks
		watch := func() (*client.TaskEvents, error) {
			return c.conn.WatchTasks(ctx, message.WatchTasks{Endpoint: filter.Endpoint, Mine: filter.Mine})
		}
		for e, err := range taskEvents(ctx, watch, &open.server) {
			if err != nil {
				if errors.Is(err, ErrUnavailable) {
					for _, t := range open.lost(ctx, c) {
						if !yield(TaskEvent{Kind: TaskLost, Task: t}, nil) {
							return
						}
					}
				}
				yield(TaskEvent{}, fmt.Errorf("watch tasks: %w", err))
				return
			}
			if e.Kind != TasksMissed && len(filter.States) > 0 {
				if !shown[e.Task.ID] && !slices.Contains(filter.States, e.Task.State) {
					continue
				}
				shown[e.Task.ID] = true
				if e.Task.State.Terminal() {
					delete(shown, e.Task.ID)
				}
			}
			open.note(e)
			if !yield(e, nil) {
				return
			}
		}
	}
}

// openTasks are the reported tasks of a watch that have not ended.
type openTasks struct {
	server string // that runs them
	tasks  []TaskInfo
}

// note applies a reported event.
func (o *openTasks) note(e TaskEvent) {
	at := slices.IndexFunc(o.tasks, func(t TaskInfo) bool { return t.ID == e.Task.ID })
	switch ended := e.Task.State.Terminal(); {
	case e.Kind == TasksMissed:
		o.tasks = nil // all are listed again
	case at < 0 && !ended:
		o.tasks = append(o.tasks, e.Task)
	case at >= 0 && ended:
		o.tasks = slices.Delete(o.tasks, at, at+1)
	case at >= 0:
		o.tasks[at] = e.Task
	}
}

// lost returns the tasks if the server that ran them has ended: another one serves, or none.
func (o *openTasks) lost(ctx context.Context, c *caller) []TaskInfo {
	if len(o.tasks) == 0 {
		return nil
	}
	conn, err := c.conn.ConnectNow(ctx)
	if err == nil && conn.Server.Server == o.server || err != nil && !errors.Is(err, ErrUnavailable) {
		return nil
	}
	return o.tasks
}

// Tasks implements [Client.Tasks].
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

// taskEvents returns the events of a watch of the server, whose id it stores in server unless that is nil.
func taskEvents(ctx context.Context, watch func() (*client.TaskEvents, error), server *string) iter.Seq2[TaskEvent, error] {
	return func(yield func(TaskEvent, error) bool) {
		watched, err := watch()
		if err != nil {
			yield(TaskEvent{}, err)
			return
		}
		defer watched.Close()
		if server != nil {
			*server = watched.Server()
		}
		for {
			var events []message.TaskEvent
			err := waiting(ctx, func() (err error) {
				events, err = watched.Next(ctx)
				return err
			})
			if err != nil {
				yield(TaskEvent{}, err)
				return
			}
			for _, e := range events {
				if out, ok := decodeTaskEvent(e); ok && !yield(out, nil) {
					return
				}
			}
		}
	}
}

// decodeTaskEvent converts an event from its wire form. It returns false for an unknown kind.
func decodeTaskEvent(in message.TaskEvent) (TaskEvent, bool) {
	switch {
	case in.Kind == message.TasksMissed:
		return TaskEvent{Kind: TasksMissed}, true
	case in.Task == nil:
	case in.Kind == message.TaskListed:
		return TaskEvent{Kind: TaskListed, Task: decodeTask(*in.Task)}, true
	case in.Kind == message.TaskChanged:
		return TaskEvent{Kind: TaskChanged, Task: decodeTask(*in.Task)}, true
	}
	return TaskEvent{}, false
}
