package command

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// taskBoard shows tasks on a terminal: unfinished tasks as bars at the bottom, finished tasks as lines that scroll up
// above them. It is used by one goroutine at a time.
type taskBoard struct {
	out  io.Writer
	size func() (width, height int)
	now  func() time.Time

	live  []endpoint.TaskInfo // in order of their first event
	above []string            // lines to write above the bars
	drawn int                 // number of lines at the bottom
}

func newTaskBoard(out io.Writer, size func() (width, height int)) *taskBoard {
	return &taskBoard{out: out, size: size, now: time.Now}
}

// take records an event.
func (b *taskBoard) take(e endpoint.TaskEvent) {
	if e.Kind == endpoint.TasksMissed {
		b.live = nil
		b.above = append(b.above, b.now().Format(clock)+" "+missedTasks)
		return
	}
	at := slices.IndexFunc(b.live, func(t endpoint.TaskInfo) bool { return t.ID == e.Task.ID })
	switch {
	case e.Task.State.Terminal():
		if at >= 0 {
			b.live = slices.Delete(b.live, at, at+1)
		}
		b.above = append(b.above, taskText(e.Task, b.now()))
	case at >= 0:
		b.live[at] = e.Task
	default:
		b.live = append(b.live, e.Task)
	}
}

// draw writes new lines and redraws the bars below.
func (b *taskBoard) draw() error {
	width, height := b.size()
	var text strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", b.drawn) // move up to the first bar
	}
	text.WriteString("\r\x1b[J") // clear the bars
	for _, line := range b.above {
		text.WriteString(line + "\n")
	}
	rows := b.rows(max(width-1, 1), max(height-1, 1))
	for _, row := range rows {
		text.WriteString(row + "\n")
	}
	b.above, b.drawn = nil, len(rows)
	_, err := io.WriteString(b.out, text.String())
	return err
}

// rows returns the unfinished tasks, running tasks first, in at most height lines.
func (b *taskBoard) rows(width, height int) []string {
	tasks := slices.Clone(b.live)
	slices.SortStableFunc(tasks, func(x, y endpoint.TaskInfo) int { return waits(x) - waits(y) })
	names, now := 0, b.now()
	for _, t := range tasks {
		names = max(names, utf8.RuneCountInString(term.Printable(t.Endpoint)))
	}
	names = min(names, max(width/4, 8))
	var rows []string
	for i, t := range tasks {
		if i == height-1 && len(tasks) > height {
			rows = append(rows, fmt.Sprintf("… %d more", len(tasks)-i))
			break
		}
		rows = append(rows, term.Clip(boardRow(t, names, max(width/4, 6), now), width))
	}
	return rows
}

// waits returns 1 for a task that has not started, otherwise 0.
func waits(t endpoint.TaskInfo) int {
	if t.State == endpoint.TaskPending {
		return 1
	}
	return 0
}

// boardRow formats a task as a bar with its message.
func boardRow(t endpoint.TaskInfo, names, bars int, now time.Time) string {
	name := term.Clip(term.Printable(t.Endpoint), names)
	name += strings.Repeat(" ", names-utf8.RuneCountInString(name))
	if t.State == endpoint.TaskPending {
		return fmt.Sprintf("%s  %s  waiting for %s", shortID(t.ID), name, term.FormatAge(now.Sub(t.CreatedAt)))
	}
	row := fmt.Sprintf("%s  %s  %s %5s  %7s  %s", shortID(t.ID), name, bar(min(t.Done, t.Total), t.Total, bars), taskProgress(t),
		term.FormatDuration(max(now.Sub(t.StartedAt), 0).Round(100*time.Millisecond)), term.Printable(taskMessage(t)))
	return strings.TrimRight(row, " ")
}
