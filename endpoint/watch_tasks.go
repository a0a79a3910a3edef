package endpoint

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/watch"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TaskEventKind says what a [TaskEvent] is.
type TaskEventKind string

// The kinds of events of tasks.
const (
	// TaskListed is a task as it is, at the beginning and after TasksMissed.
	TaskListed TaskEventKind = "listed"
	// TaskChanged is a task that has come, or whose state or progress has changed.
	TaskChanged TaskEventKind = "changed"
	// TasksMissed says that there were more changes than are kept for a loop that does not take them. All tasks are
	// listed again.
	TasksMissed TaskEventKind = "missed"
)

// TaskEvent is one event of a watch of tasks.
type TaskEvent struct {
	// Kind says what it is.
	Kind TaskEventKind
	// Task is the task as it was then; the zero value where Kind is TasksMissed.
	Task TaskInfo
}

// WatchTasks follows tasks: first those that there are, in the order in which they were submitted, then every change of
// state in the order in which it happened, also of tasks that come and go, with the newest progress. A loop that is
// slow skips progress, never a state, until too much waits: then it is told [TasksMissed]. With states in the filter a
// task is told from when it is in one of them. Leaving the loop ends it, and so does an error, the last pair:
// [ErrUnavailable] when the server is gone, the cause of ctx.
func (c *caller) WatchTasks(ctx context.Context, filter TaskFilter) iter.Seq2[TaskEvent, error] {
	return func(yield func(TaskEvent, error) bool) {
		shown := map[string]bool{} // those that were in one of the states
		for e, err := range c.watchTasks(ctx, message.WatchTasks{Endpoint: filter.Endpoint, Mine: filter.Mine}) {
			if err != nil {
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
			if !yield(e, nil) {
				return
			}
		}
	}
}

// WatchTask follows a task: first as it is now, then at each change of its state or progress, last at its end. A loop
// that is slow skips progress, never a state. An error is the last pair, with what was known before. Leaving the loop
// leaves the task alone.
func (c *caller) WatchTask(ctx context.Context, id string) iter.Seq2[TaskInfo, error] {
	return func(yield func(TaskInfo, error) bool) {
		var last TaskInfo
		for e, err := range c.watchTasks(ctx, message.WatchTasks{ID: id}) {
			if err != nil {
				yield(last, fmt.Errorf("task %s: %w", message.CutText(id, status.MaxShown), err))
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

// watchTasks passes on the events of the server.
func (c *caller) watchTasks(ctx context.Context, ask message.WatchTasks) iter.Seq2[TaskEvent, error] {
	return func(yield func(TaskEvent, error) bool) {
		watched, err := watch.Tasks(ctx, c.to.conn, ask)
		if err != nil {
			yield(TaskEvent{}, err)
			return
		}
		defer watched.Close()
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

// decodeTaskEvent is what a caller makes of an event; false for one that it does not know.
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
