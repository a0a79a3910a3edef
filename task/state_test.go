package task

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

var states = []State{Pending, Running, Succeeded, Failed, Cancelled}

func TestEveryPairOfStates(t *testing.T) {
	t.Parallel()
	legal := map[[2]State]bool{
		{Pending, Running}: true, {Pending, Cancelled}: true,
		{Running, Succeeded}: true, {Running, Failed}: true, {Running, Cancelled}: true,
	}
	all := append([]State{0, Cancelled + 1}, states...)
	for _, from := range all {
		for _, to := range all {
			require.Equal(t, legal[[2]State{from, to}], from.CanBecome(to), "%s to %s", from, to)
			task := &Task[int]{status: Status{State: from}}
			if legal[[2]State{from, to}] {
				task.becomeLocked(to)
				require.Equal(t, to, task.status.State)
			} else {
				require.Panics(t, func() { task.becomeLocked(to) })
			}
		}
	}
}

func TestStateNames(t *testing.T) {
	t.Parallel()
	names := []string{"pending", "running", "completed", "failed", "cancelled"}
	for i, s := range states {
		require.Equal(t, names[i], s.String())
		parsed, err := ParseState(names[i])
		require.NoError(t, err)
		require.Equal(t, s, parsed)
		require.Equal(t, i >= 2, s.Terminal())
	}
	require.Equal(t, "state 0", State(0).String())
	require.Equal(t, "state 6", (Cancelled + 1).String())
	require.False(t, (Cancelled + 1).Terminal())
	for _, bad := range []string{"", "succeeded", "Pending"} {
		_, err := ParseState(bad)
		require.Error(t, err)
	}
}

// taskIn returns a task in the given state in a new manager, and a function that lets it end.
func taskIn(t *testing.T, s State) (task *Task[*resource], open func()) {
	t.Helper()
	m := newManager(t, Options[*resource]{Workers: 1})
	g := newGate()
	open = func() {}
	switch s {
	case Pending:
		submit(t, m, g.wait)
		task = submit(t, m, give(newResource()))
		open = func() { close(g.opened) }
	case Running:
		task = submit(t, m, g.wait)
		open = func() { close(g.opened) }
	case Succeeded:
		task, _ = run(t, m)
	case Failed:
		task = submit(t, m, func(context.Context) (*resource, error) { return nil, errors.New("broken") })
		require.ErrorIs(t, task.Wait(ctx), ErrFailed)
	case Cancelled:
		task = submit(t, m, g.wait)
		require.True(t, task.Cancel(nil))
		require.ErrorIs(t, task.Wait(ctx), ErrCancelled)
	}
	synctest.Wait()
	require.Equal(t, s, state(task))
	return task, open
}

// Every method behaves as documented in every state.
func TestWhatCanBeDoneInEachState(t *testing.T) {
	t.Parallel()
	tests := []struct {
		state   State
		err     error // of Err and Result
		cancel  bool
		discard error
	}{
		{Pending, ErrNotFinished, true, ErrNotFinished},
		{Running, ErrNotFinished, true, ErrNotFinished},
		{Succeeded, nil, false, nil},
		{Failed, ErrFailed, false, nil},
		{Cancelled, ErrCancelled, false, nil},
	}
	for _, test := range tests {
		t.Run(test.state.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				task, open := taskIn(t, test.state)
				defer open()
				require.ErrorIs(t, task.Err(), test.err)
				r, err := task.Result()
				require.ErrorIs(t, err, test.err)
				require.Equal(t, err == nil, r != nil)
				if test.state == Pending || test.state == Running {
					require.ErrorContains(t, err, "is "+test.state.String())
				}
				require.ErrorIs(t, task.Discard(), test.discard)
				require.Equal(t, test.cancel, task.Cancel(nil))
				if test.cancel {
					require.ErrorIs(t, task.Wait(ctx), ErrCancelled)
				}
				require.True(t, state(task).Terminal())
			})
		})
	}
}
