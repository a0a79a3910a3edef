package endpoint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/subscription"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Unsent events of a session are limited at the server too.
func TestTaskWatchListsAgain(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, Register(r, "number", func(_ context.Context, n int) (int, error) { return n, nil }))
	s, err := newOwner(ServerOptions{Registry: r, Tasks: TaskOptions{Capacity: 4}})
	require.NoError(t, err)
	defer s.Close()
	ctx := context.Background()
	run := func() string {
		info, err := s.Submit(ctx, "number", 1)
		require.NoError(t, err)
		_, err = s.Wait(ctx, info.ID)
		require.NoError(t, err)
		return info.ID
	}
	kinds := func(events []any) (list []message.TaskEventKind) {
		for _, e := range events {
			list = append(list, e.(message.TaskEvent).Kind)
		}
		return list
	}
	first := run()
	tasks := &taskOperations{manager: s.engine.Tasks}
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
	require.Equal(t, subscription.MaxNames, from.Weight())
	_, err = tasks.newSource(message.WatchTasks{ID: first}, 0)
	require.Error(t, err, "dropped")
}
