package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// taskEvents are what happens to tasks, as it happens.
type taskEvents = iter.Seq2[endpoint.TaskEvent, error]

// watchTasks shows every task once and then each change, until ctx ends, which is how watching usually ends and no
// failure. On a terminal tasks that have not ended are bars at the bottom.
func watchTasks(ctx context.Context, c *cobra.Command, o tasksFlags, client *endpoint.Client, filter endpoint.TaskFilter) error {
	out := c.OutOrStdout()
	events := client.WatchTasks(ctx, filter)
	s, terminal, err := term.OpenScreen(c.InOrStdin(), out)
	switch {
	case err != nil:
		return err
	case o.json:
		err = printTaskEvents(events, out)
	case terminal:
		err = newTaskBoard(out, s.Size).show(ctx, events)
	default:
		err = newTaskLines(out).print(events)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// taskEventJSON is an event as JSON: a task, and what about it.
type taskEventJSON struct {
	Event endpoint.TaskEventKind `json:"event"`
	*endpoint.TaskInfo
}

// printTaskEvents prints one object a line.
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

// missedTasks is what is said where changes were lost.
const missedTasks = "some changes were missed; what follows is what there is now"

// taskLines prints a line for each change of state, and for the progress of a task at most one a second.
type taskLines struct {
	out  io.Writer
	now  func() time.Time
	last map[string]taskLine // of tasks that have not ended
}

// taskLine is what was printed of a task, and when.
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

// take prints an event, if it is worth a line.
func (l *taskLines) take(e endpoint.TaskEvent) error {
	now := l.now()
	if e.Kind == endpoint.TasksMissed {
		clear(l.last)
		_, err := fmt.Fprintln(l.out, now.Format(clock), missedTasks)
		return err
	}
	t := e.Task
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

// clock is a time of day.
const clock = "15:04:05.000"

// taskText is a task as one line.
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

// drawEvery is how often a board is drawn at most, and at least: what tasks took goes on.
const (
	drawEvery   = 50 * time.Millisecond
	redrawEvery = 500 * time.Millisecond
)

// show shows events on a board until there are no more.
func (b *taskBoard) show(ctx context.Context, events taskEvents) error {
	ctx, cancel := context.WithCancel(ctx)
	type step struct {
		event endpoint.TaskEvent
		err   error
	}
	steps := make(chan step)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(steps)
		for e, err := range events {
			select {
			case steps <- step{e, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	defer reading.Wait()
	defer cancel()
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	var drawn time.Time
	changed := false
	for {
		select {
		case s, more := <-steps:
			if !more || s.err != nil {
				return errors.Join(s.err, b.draw())
			}
			b.take(s.event)
			changed = true
		case now := <-tick.C:
			if !changed && now.Sub(drawn) < redrawEvery {
				continue
			}
			if err := b.draw(); err != nil {
				return err
			}
			changed, drawn = false, now
		}
	}
}
