package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// taskLog records the events of a task watch.
type taskLog struct {
	mu     sync.Mutex
	events []endpoint.TaskEvent
	err    error
	ended  chan struct{}
}

// watchTasks watches until ctx ends.
func watchTasks(ctx context.Context, c endpoint.Caller, filter endpoint.TaskFilter) *taskLog {
	log := &taskLog{ended: make(chan struct{})}
	go func() {
		defer close(log.ended)
		for e, err := range c.WatchTasks(ctx, filter) {
			log.mu.Lock()
			if err != nil {
				log.err = err
			} else {
				log.events = append(log.events, e)
			}
			log.mu.Unlock()
		}
	}()
	return log
}

// states returns the reported states of each task, each once.
func (l *taskLog) states() map[string][]endpoint.TaskState {
	l.mu.Lock()
	defer l.mu.Unlock()
	states := map[string][]endpoint.TaskState{}
	for _, e := range l.events {
		if list := states[e.Task.ID]; len(list) == 0 || list[len(list)-1] != e.Task.State {
			states[e.Task.ID] = append(list, e.Task.State)
		}
	}
	return states
}

func (l *taskLog) count(kind endpoint.TaskEventKind) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, e := range l.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

var wholeLife = []endpoint.TaskState{endpoint.TaskPending, endpoint.TaskRunning, endpoint.TaskCompleted}

func TestTaskWatchStates(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	early, err := c.Submit(ctx, "model task", fixture.ModelIn{Size: 1})
	require.NoError(t, err)
	_, err = early.Wait(ctx)
	require.NoError(t, err)
	all := watchTasks(ctx, c, endpoint.TaskFilter{})
	mine := watchTasks(ctx, c, endpoint.TaskFilter{Mine: true})
	steps := watchTasks(ctx, c, endpoint.TaskFilter{Endpoint: "steps"})
	ended := watchTasks(ctx, c, endpoint.TaskFilter{Endpoint: "gated task", States: []endpoint.TaskState{endpoint.TaskCancelled}})
	proctest.Eventually(t, fixture.WaitLimit, "the watches have begun", func() bool { return all.count(endpoint.TaskListed)+mine.count(endpoint.TaskListed) == 2 })

	other := fixture.Client(t, c.Socket())
	want := map[string][]endpoint.TaskState{}
	for range 50 {
		want[other.Submit("model task", 3)] = wholeLife
	}
	progress, err := c.Submit(ctx, "steps", fixture.GateIn{Gate: "steps", N: 500})
	require.NoError(t, err)
	stopped, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "never"})
	require.NoError(t, err)
	proctest.Eventually(t, fixture.WaitLimit, "it runs", func() bool { return slices.Contains(all.states()[stopped.ID], endpoint.TaskRunning) })
	_, err = stopped.Cancel(ctx)
	require.NoError(t, err)
	fixture.OpenGate(t, c, "steps")
	want[progress.ID] = wholeLife
	want[stopped.ID] = []endpoint.TaskState{endpoint.TaskPending, endpoint.TaskRunning, endpoint.TaskCancelled}
	want[early.ID] = []endpoint.TaskState{endpoint.TaskCompleted}
	proctest.Eventually(t, fixture.WaitLimit, "all was told", func() bool { return maps.EqualFunc(want, all.states(), slices.Equal) })
	require.Equal(t, 1, all.count(endpoint.TaskListed))
	require.Zero(t, all.count(endpoint.TasksMissed))
	proctest.Eventually(t, fixture.WaitLimit, "each watch heard what it asked for", func() bool {
		return len(mine.states()) == 3 && len(steps.states()[progress.ID]) == 3 && len(ended.states()[stopped.ID]) == 1
	})
	require.Len(t, steps.states(), 1)
	require.Equal(t, []endpoint.TaskState{endpoint.TaskCancelled}, ended.states()[stopped.ID], "told from when it is in the state")
	last := steps.events[len(steps.events)-1].Task
	require.EqualValues(t, 500, last.Done)
	require.NoError(t, last.Err())
	all.mu.Lock()
	for _, e := range all.events {
		if e.Task.ID == stopped.ID && e.Task.State.Terminal() {
			require.ErrorIs(t, e.Task.Err(), task.ErrCancelled)
		}
	}
	all.mu.Unlock()

	cancel()
	for _, log := range []*taskLog{all, mine, steps, ended} {
		<-log.ended
		require.ErrorIs(t, log.err, context.Canceled)
	}
}

// Tasks that are not kept are still reported, and a slow loop misses no state.
func TestTaskWatchDroppedTasks(t *testing.T) {
	t.Parallel()
	r := endpoint.NewRegistry()
	stays := make(chan struct{})
	require.NoError(t, endpoint.Register(r, "stay", func(context.Context, int) (int, error) { <-stays; return 0, nil }, endpoint.NoCache()))
	require.NoError(t, endpoint.Register(r, "number", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.NoCache()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Retain: -1}})
	defer close(stays)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer c.Close()
	_, err = s.Submit(ctx, "stay", 1)
	require.NoError(t, err)
	for name, through := range map[string]endpoint.Caller{"another process": c, "this process": s} {
		t.Run(name, func(t *testing.T) {
			states, want := map[string][]endpoint.TaskState{}, map[string][]endpoint.TaskState{}
			for e, err := range through.WatchTasks(ctx, endpoint.TaskFilter{}) {
				require.NoError(t, err)
				if e.Task.Endpoint == "stay" {
					if len(want) > 0 {
						continue // it runs now
					}
					for range 30 { // while the loop does not read
						info, err := s.Submit(ctx, "number", 2)
						require.NoError(t, err)
						want[info.ID] = wholeLife
					}
					time.Sleep(10 * time.Millisecond)
					continue
				}
				states[e.Task.ID] = append(states[e.Task.ID], e.Task.State)
				if maps.EqualFunc(want, states, slices.Equal) {
					break
				}
			}
		})
	}
}

func TestTaskWatchEnds(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	log := watchTasks(ctx, c, endpoint.TaskFilter{})
	info, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "never"})
	require.NoError(t, err)
	proctest.Eventually(t, fixture.WaitLimit, "the watch goes on", func() bool { return len(log.states()[info.ID]) > 0 })
	o.Kill()
	<-log.ended
	require.ErrorIs(t, log.err, endpoint.ErrUnavailable)
}

// A loop that ends leaves nothing at the owner, and the number of watches is limited.
func TestTaskWatchLimit(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: fixture.Numbers(t), Limits: endpoint.Limits{Subscriptions: 1024}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer c.Close()
	info, err := c.Submit(ctx, "number", fixture.ModelIn{})
	require.NoError(t, err)
	for range 5 {
		for e, err := range c.WatchTasks(ctx, endpoint.TaskFilter{}) {
			require.NoError(t, err)
			require.Equal(t, info.ID, e.Task.ID)
			for _, err := range c.WatchTasks(ctx, endpoint.TaskFilter{}) {
				require.ErrorIs(t, err, endpoint.ErrLimit)
			}
			break
		}
	}
	late, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("enough"))
	for _, through := range []endpoint.Caller{c, s} {
		for _, err := range through.WatchTasks(late, endpoint.TaskFilter{}) {
			require.ErrorContains(t, err, "enough")
		}
		for _, err := range through.Task("nothing").Events(ctx) {
			require.ErrorIs(t, err, task.ErrNotFound)
		}
	}
	require.NoError(t, s.Close())
	for _, err := range s.WatchTasks(ctx, endpoint.TaskFilter{}) {
		require.ErrorIs(t, err, endpoint.ErrUnavailable)
	}
}

// Unread events are limited: the excess is dropped and reported, and the tasks are listed again. Tasks do not wait for
// readers.
func TestTaskWatchMissed(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "number", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.AsTask(), endpoint.NoCache()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 5000, Retain: 20}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer c.Close()
	run := func() *endpoint.Task {
		info, err := s.Submit(ctx, "number", 1)
		require.NoError(t, err)
		_, err = info.Wait(ctx)
		if err != nil { // already dropped
			require.ErrorIs(t, err, task.ErrNotFound)
		}
		return info
	}
	run()
	last := &endpoint.Task{}
	var missed, after, rounds int
	for e, err := range c.WatchTasks(ctx, endpoint.TaskFilter{}) {
		require.NoError(t, err)
		if missed == 0 && (last.ID == "" || e.Task.ID == last.ID && e.Task.State.Terminal()) {
			// While the loop does not read. If the connection is read slowly, no more arrives than is kept.
			rounds++
			require.LessOrEqual(t, rounds, 50, "nothing is ever missed")
			for range 2000 {
				last = run()
			}
			continue
		}
		if e.Kind == endpoint.TasksMissed {
			missed++
			continue
		}
		if missed > 0 {
			after++
		}
		if e.Task.ID == last.ID && e.Task.State.Terminal() {
			break
		}
	}
	require.Equal(t, 1, missed)
	require.LessOrEqual(t, after, 100, "the tasks that there are, and what happened since")

	// A reader that does not read at all does not delay others.
	p := fixture.PolitePeer(t, s.Socket())
	frame, err := p.Send(message.OpTaskWatch, message.WatchTasks{})
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, frame.Kind, fmt.Sprint(frame.Kind))
	for range 1000 {
		run()
	}
	p.Conn.Close()
}
