package server

import (
	"context"
	"log/slog"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// numberEndpoint returns an endpoint that returns 1.
func numberEndpoint() *engine.Definition {
	return &engine.Definition{
		Name: "number", In: reflect.TypeFor[int](), Out: reflect.TypeFor[int](),
		Decode: func(message.RawMessage, []*tensor.Storage) (any, []interface{ Close() error }, error) {
			return new(int), nil, nil
		},
		Invoke: func(context.Context, any) (any, error) { return 1, nil },
	}
}

// newTaskRunner returns an engine that keeps that many tasks, and a function that runs a task to its end and returns its
// id.
func newTaskRunner(t *testing.T, capacity int) (*engine.Engine, func() string) {
	e := engine.New(engine.Config{Log: slog.New(slog.DiscardHandler), Tasks: engine.TaskBounds{Capacity: capacity}})
	ctx, d := context.Background(), numberEndpoint()
	return e, func() string {
		a, err := e.ArgumentsOf(d, nil, nil)
		require.NoError(t, err)
		started, err := e.Submit(ctx, task.Spec{Name: d.Name}, d, a, nil, nil, nil)
		require.NoError(t, err)
		require.NoError(t, started.Wait(ctx))
		return started.ID()
	}
}

// Unsent events of a session are limited at the server too.
func TestTaskWatchListsAgain(t *testing.T) {
	t.Parallel()
	e, run := newTaskRunner(t, 4)
	kinds := func(events []any) (list []message.TaskEventKind) {
		for _, e := range events {
			list = append(list, e.(message.TaskEvent).Kind)
		}
		return list
	}
	first := run()
	tasks := &taskOperations{manager: e.Tasks}
	from, err := tasks.newSource(message.WatchTasks{}, 0)
	require.NoError(t, err)
	woken := make(chan struct{}, 100)
	from.Open(func() { woken <- struct{}{} })
	defer from.Close()
	require.True(t, from.Opening())
	second := run()
	require.Equal(t, []message.TaskEventKind{message.TaskListed, message.TaskListed}, kinds(from.Take()), "what came before is in the list")
	require.Empty(t, from.Take())
	third := run()
	events := from.Take()
	require.Equal(t, []message.TaskEventKind{message.TaskChanged, message.TaskChanged, message.TaskChanged}, kinds(events))
	for _, e := range events {
		require.Equal(t, third, e.(message.TaskEvent).Task.ID)
	}

	for range 10 {
		run()
	}
	last := run()
	events = from.Take()
	require.Equal(t, []message.TaskEventKind{message.TasksMissed, message.TaskListed, message.TaskListed, message.TaskListed, message.TaskListed}, kinds(events)[:5])
	require.Equal(t, last, events[4].(message.TaskEvent).Task.ID)
	require.NotEqual(t, first, second)
	require.NotEmpty(t, woken)

	one, err := tasks.newSource(message.WatchTasks{ID: last}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, one.Weight())
	require.Equal(t, session.MaxNames, from.Weight())
	_, err = tasks.newSource(message.WatchTasks{ID: first}, 0)
	require.Error(t, err, "dropped")
}

// A task that ends and is dropped while a client begins to watch it is reported all the same.
func TestWatchedTaskIsDroppedBeforeTheList(t *testing.T) {
	t.Parallel()
	e, run := newTaskRunner(t, 1)
	id := run()
	from, err := (&taskOperations{manager: e.Tasks}).newSource(message.WatchTasks{ID: id}, 0)
	require.NoError(t, err)
	run() // takes the place of the first task
	from.Open(func() {})
	defer from.Close()
	events := from.Take()
	require.Len(t, events, 1)
	require.Equal(t, id, events[0].(message.TaskEvent).Task.ID)
	require.Equal(t, task.Succeeded.String(), events[0].(message.TaskEvent).Task.State)
}
