package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

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
	t.Parallel()
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

func TestTasksWatchJSON(t *testing.T) {
	t.Parallel()
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

// Progress is drawn for any numbers that the owner sends.
func TestTaskMeterExtremeNumbers(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		var b bytes.Buffer
		m, now := newTaskMeter(&b), time.Unix(1000, 0)
		m.terminal, m.now = terminal, func() time.Time { return now }
		for _, c := range [][2]int64{{-5, 10}, {20, 10}, {math.MinInt64, -1}, {math.MaxInt64, 1}, {math.MaxInt64, math.MaxInt64}} {
			m.update(endpoint.TaskInfo{State: endpoint.TaskRunning, Done: c[0], Total: c[1], Message: "x"})
			now = now.Add(2 * time.Second)
		}
		m.close()
		require.NotEmpty(t, b.String())
		require.NotRegexp(t, `-\d|[2-9]\d\d%|\d{4,}%`, b.String(), "less than nothing, or more than all")
	}
}
