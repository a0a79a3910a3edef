package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// taskEvents iterates over changes of tasks.
type taskEvents = iter.Seq2[endpoint.TaskEvent, error]

// watchTasks shows every task once, and then each change. It returns nil when ctx ends, because that is the usual end
// of watching.
func watchTasks(ctx context.Context, c *cobra.Command, o tasksFlags, client *endpoint.Client, filter endpoint.TaskFilter) error {
	out := c.OutOrStdout()
	events := client.WatchTasks(ctx, filter)
	var err error
	if o.json {
		err = printTaskEvents(events, out)
	} else {
		err = newTaskLines(out).print(events)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// taskEventJSON is the JSON form of an event: the task and the kind of change.
type taskEventJSON struct {
	Event endpoint.TaskEventKind `json:"event"`
	*endpoint.TaskInfo
}

// printTaskEvents prints one object per line.
func printTaskEvents(events taskEvents, out io.Writer) error {
	for e, err := range events {
		if err != nil {
			return err
		}
		line := taskEventJSON{Event: e.Kind, TaskInfo: &e.Task}
		if e.Kind == endpoint.TasksMissed {
			line.TaskInfo = nil
		}
		if err := term.PrintJSONLine(out, line); err != nil {
			return err
		}
	}
	return nil
}

// missedTasks is printed if events were lost.
const missedTasks = "some changes were missed; the current state follows"

// taskLines prints a line for each change of state, and at most one progress line per second for each task.
type taskLines struct {
	out  io.Writer
	now  func() time.Time
	last map[string]taskLine // unfinished tasks
}

// taskLine is the last printed line of a task, with its time.
type taskLine struct {
	state endpoint.TaskState
	at    time.Time
}

func newTaskLines(out io.Writer) *taskLines {
	return &taskLines{out: out, now: time.Now, last: map[string]taskLine{}}
}

func (l *taskLines) print(events taskEvents) error {
	for e, err := range events {
		if err != nil {
			return err
		}
		if err := l.take(e); err != nil {
			return err
		}
	}
	return nil
}

// take prints an event if it deserves a line.
func (l *taskLines) take(e endpoint.TaskEvent) error {
	now := l.now()
	if e.Kind == endpoint.TasksMissed {
		clear(l.last)
		_, err := fmt.Fprintln(l.out, now.Format(clock), missedTasks)
		return err
	}
	t := e.Task
	if e.Kind == endpoint.TaskLost {
		delete(l.last, t.ID)
		_, err := fmt.Fprintln(l.out, now.Format(clock), t.ID[:min(12, len(t.ID))], term.Printable(t.Endpoint), "lost: its owner has ended")
		return err
	}
	if last, known := l.last[t.ID]; known && last.state == t.State && now.Sub(last.at) < term.PlainEvery {
		return nil
	}
	l.last[t.ID] = taskLine{t.State, now}
	if t.State.Terminal() {
		delete(l.last, t.ID)
	}
	_, err := fmt.Fprintln(l.out, taskText(t, now))
	return err
}

// clock is the layout of times.
const clock = "15:04:05.000"

// taskText formats a task as one line.
func taskText(t endpoint.TaskInfo, at time.Time) string {
	line := fmt.Sprintf("%s %s %s %s", at.Format(clock), shortID(t.ID), term.Printable(t.Endpoint), term.Printable(string(t.State)))
	if t.State == endpoint.TaskRunning {
		line += " " + taskProgress(t)
	}
	if t.State == endpoint.TaskCompleted {
		line += " in " + taskTook(t, at)
	}
	if message := taskMessage(t); message != "" {
		line += " " + term.Printable(message)
	}
	return line
}
