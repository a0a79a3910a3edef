package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// taskAt returns a task in the given state.
func taskAt(id string, state endpoint.TaskState, done, total int64) endpoint.TaskInfo {
	begun := time.Unix(1_700_000_000, 0)
	t := endpoint.TaskInfo{ID: id + strings.Repeat("0", 32-len(id)), Endpoint: "build", State: state, CreatedAt: begun, Done: done, Total: total}
	if state != endpoint.TaskPending {
		t.StartedAt = begun.Add(time.Second)
	}
	if state.Terminal() {
		t.FinishedAt = begun.Add(3 * time.Second)
	}
	return t
}

func changed(t endpoint.TaskInfo) endpoint.TaskEvent {
	return endpoint.TaskEvent{Kind: endpoint.TaskChanged, Task: t}
}

func TestTaskLines(t *testing.T) {
	var out strings.Builder
	now := time.Unix(1_700_000_002, 0).UTC()
	l := newTaskLines(&out)
	l.now = func() time.Time { return now }
	for _, e := range []endpoint.TaskEvent{
		changed(taskAt("a", endpoint.TaskPending, 0, 0)),
		changed(taskAt("a", endpoint.TaskRunning, 0, 10)),
		changed(taskAt("b", endpoint.TaskRunning, 7, 0)),
		changed(taskAt("a", endpoint.TaskRunning, 1, 10)), // too early for another line
	} {
		require.NoError(t, l.take(e))
	}
	now = now.Add(time.Second)
	require.NoError(t, l.take(changed(taskAt("a", endpoint.TaskRunning, 5, 10))))
	require.NoError(t, l.take(changed(taskAt("a", endpoint.TaskCompleted, 10, 10))))
	require.NoError(t, l.take(endpoint.TaskEvent{Kind: endpoint.TasksMissed}))
	require.NoError(t, l.take(changed(taskAt("b", endpoint.TaskRunning, 8, 0))))
	require.Equal(t, []string{
		"22:13:22.000 a00000000000 build pending", "22:13:22.000 a00000000000 build running 0%", "22:13:22.000 b00000000000 build running 7",
		"22:13:23.000 a00000000000 build running 50%", "22:13:23.000 a00000000000 build completed in 2.00s",
		"22:13:23.000 some changes were missed; the current state follows", "22:13:23.000 b00000000000 build running 8", "",
	}, strings.Split(out.String(), "\n"))
	require.Len(t, l.last, 1, "finished tasks are dropped")

	gone := errors.New("gone")
	err := l.print(func(yield func(endpoint.TaskEvent, error) bool) { yield(endpoint.TaskEvent{}, gone) })
	require.ErrorIs(t, err, gone)
}

// onScreen returns what a terminal shows after the text. It implements only the sequences that a board uses.
func onScreen(text string) []string {
	lines := []string{""}
	row := 0
	for text != "" {
		var up int
		switch {
		case strings.HasPrefix(text, "\x1b[J"):
			lines = append(lines[:row], "")
			text = text[3:]
		case strings.HasPrefix(text, "\x1b["):
			n, _ := fmt.Sscanf(text, "\x1b[%dA", &up)
			if n != 1 {
				panic("another sequence: " + text)
			}
			row -= up
			_, text, _ = strings.Cut(text, "A")
		case text[0] == '\r':
			text = text[1:]
		case text[0] == '\n':
			row++
			if row == len(lines) {
				lines = append(lines, "")
			}
			text = text[1:]
		default:
			r, n := utf8.DecodeRuneInString(text)
			lines[row] += string(r)
			text = text[n:]
		}
	}
	return lines
}

func TestTaskBoard(t *testing.T) {
	var out strings.Builder
	width, height := 81, 6
	b := newTaskBoard(&out, func() (int, int) { return width, height })
	b.now = func() time.Time { return time.Unix(1_700_000_003, 0).UTC() }
	draw := func() []string {
		require.NoError(t, b.draw())
		lines := onScreen(out.String())
		for _, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(line), width)
		}
		return lines
	}
	b.take(changed(taskAt("a", endpoint.TaskPending, 0, 0)))
	b.take(changed(taskAt("b", endpoint.TaskRunning, 5, 10)))
	b.take(changed(taskAt("c", endpoint.TaskCompleted, 1, 1)))
	half := "▕██████████          ▏"
	require.Equal(t, []string{
		"22:13:23.000 c00000000000 build completed in 2.00s",
		"b00000000000  build  " + half + "   50%    2.00s",
		"a00000000000  build  waiting for 3s", "",
	}, draw(), "what ended is above, what runs is before what waits")

	failed := taskAt("b", endpoint.TaskFailed, 5, 10)
	failed.Error = "no memory\x1b[2J\nat all"
	b.take(changed(failed))
	running := taskAt("a", endpoint.TaskRunning, 42, 0)
	running.Message = strings.Repeat("long ", 30)
	b.take(changed(running))
	lines := draw()
	require.Len(t, lines, 4)
	require.Contains(t, lines[1], "b00000000000 build failed no memory")
	require.NotContains(t, out.String(), "\x1b[2J")
	require.True(t, strings.HasPrefix(lines[2], "a00000000000  build  ▕"+strings.Repeat(" ", 20)+"▏    42"), lines[2])
	require.True(t, strings.HasSuffix(lines[2], "…"))

	for i := range 10 {
		b.take(changed(taskAt(fmt.Sprint(i), endpoint.TaskRunning, int64(i), 10)))
	}
	lines = draw()
	require.Len(t, lines, 2+5+1, "a line is left for the cursor")
	require.Equal(t, "… 7 more", lines[6])
	b.take(endpoint.TaskEvent{Kind: endpoint.TasksMissed})
	width, height = 20, 1
	b.take(changed(taskAt("d", endpoint.TaskRunning, 1, 2)))
	require.NoError(t, b.draw())
	lines = onScreen(out.String())
	require.Len(t, lines, 5)
	require.Contains(t, lines[2], missedTasks)
	require.True(t, strings.HasPrefix(lines[3], "d00000000000"))
}

func TestTasksWatchJSON(t *testing.T) {
	p := newPlace(t)
	p.service()
	first := strings.TrimSpace(p.must("submit", "build_model", "hidden_size=8", "layers=2"))
	p.must("wait", first)
	watch := p.start(p.command("tasks", "--watch", "--json"))
	read := func() (event string, info endpoint.TaskInfo) {
		line := watch.line()
		var kind struct {
			Event string `json:"event"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &kind))
		require.NoError(t, json.Unmarshal([]byte(line), &info))
		return kind.Event, info
	}
	event, info := read()
	require.Equal(t, "listed", event)
	require.Equal(t, first, info.ID)
	require.Equal(t, endpoint.TaskCompleted, info.State)

	id := strings.TrimSpace(p.must("submit", "build_model", "hidden_size=9", "layers=5", "pace_ms=2"))
	var states []endpoint.TaskState
	progress := int64(0)
	for len(states) == 0 || !states[len(states)-1].Terminal() {
		event, info = read()
		require.Equal(t, "changed", event)
		require.Equal(t, id, info.ID)
		if len(states) == 0 || states[len(states)-1] != info.State {
			states = append(states, info.State)
		}
		progress = max(progress, info.Done)
	}
	require.Equal(t, []endpoint.TaskState{endpoint.TaskPending, endpoint.TaskRunning, endpoint.TaskCompleted}, states)
	require.EqualValues(t, 4, progress, "the last layer has begun")
}
