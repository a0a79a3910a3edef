package task

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sized returns a manager in which each result costs ten bytes.
func sized(t *testing.T, bytes int64) *Manager[*resource] {
	return newManager(t, Options[*resource]{Bytes: bytes, Cost: func(*resource) int64 { return 10 }})
}

func TestResultsAreKeptWithinTheBudget(t *testing.T) {
	t.Parallel()
	m := sized(t, 25)
	a, ofA := run(t, m)
	b, ofB := run(t, m)
	c, ofC := run(t, m)
	require.Equal(t, int32(0), ofA.refs.Load(), "the one that finished first goes first")
	_, err := a.Result()
	require.ErrorIs(t, err, ErrDiscarded)
	require.NoError(t, a.Err(), "its end is known")
	require.Len(t, m.List(Filter{}), 3)
	require.Equal(t, int64(20), m.Stats().Bytes)
	for _, task := range []*Task[*resource]{b, c} {
		_, err := task.Result()
		require.NoError(t, err)
	}
	require.NoError(t, b.Discard())
	require.NoError(t, b.Discard(), "twice")
	require.Equal(t, int64(10), m.Stats().Bytes)
	require.Equal(t, int32(0), ofB.refs.Load())
	run(t, m)
	require.Equal(t, int32(1), ofC.refs.Load(), "there was room")
	drop(c)
	require.Equal(t, int64(10), m.Stats().Bytes)
	drop(b)
}

func TestResultAboveTheBudgetIsNotKept(t *testing.T) {
	t.Parallel()
	m := sized(t, 9)
	task, r := run(t, m)
	require.Equal(t, int32(0), r.refs.Load())
	_, err := task.Result()
	require.ErrorIs(t, err, ErrDiscarded)
	require.Zero(t, m.Stats().Bytes)
}

func TestDiscardOfATaskThatHasNotFinished(t *testing.T) {
	t.Parallel()
	m := sized(t, 0)
	g := newGate()
	task := submit(t, m, g.wait)
	require.ErrorIs(t, task.Discard(), ErrNotFinished)
	close(g.opened)
	require.NoError(t, task.Wait(ctx))
	_, err := task.Result()
	require.NoError(t, err, "no budget is no bound")
	failed := submit(t, m, func(context.Context) (*resource, error) { return nil, io.EOF })
	require.Error(t, failed.Wait(ctx))
	require.NoError(t, failed.Discard())
	_, err = failed.Result()
	require.ErrorIs(t, err, ErrFailed)
}

func TestANewTaskTakesThePlaceOfOneWhoseResultWasGivenUp(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{Capacity: 3})
	first, _ := run(t, m)
	second, _ := run(t, m)
	third, _ := run(t, m)
	require.NoError(t, second.Discard())
	run(t, m)
	_, err := m.Get(second.ID())
	require.ErrorIs(t, err, ErrNotFound)
	run(t, m)
	_, err = m.Get(first.ID())
	require.ErrorIs(t, err, ErrNotFound, "then of the one that finished first")
	_, err = m.Get(third.ID())
	require.NoError(t, err)
}

func TestLimitOfAnOwner(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{Workers: 1})
	g, other := newGate(), newGate()
	of := func(owner uint64, g *gate) (*Task[*resource], error) {
		return m.Submit(ctx, Spec{Name: "job", Owner: owner, Limit: 2}, g.wait)
	}
	running, err := of(7, g)
	require.NoError(t, err)
	pending, err := of(7, other)
	require.NoError(t, err)
	_, err = of(7, g)
	require.ErrorIs(t, err, ErrCapacity)
	for range 3 { // other owners and tasks without a limit are unaffected
		_, err = m.Submit(ctx, Spec{Owner: 8}, g.wait)
		require.NoError(t, err)
	}
	g.result.refs.Store(10)
	require.True(t, pending.Cancel(nil))
	last, err := of(7, other)
	require.NoError(t, err)
	close(g.opened)
	close(other.opened)
	require.NoError(t, running.Wait(ctx))
	require.NoError(t, last.Wait(ctx))
	require.Zero(t, m.owners[7])
}

// After a panic in Cost the process continues, the result is released, and the worker runs the next task.
func TestPanicInCostFailsTheTask(t *testing.T) {
	t.Parallel()
	panics := true
	m := newManager(t, Options[*resource]{Workers: 1, Cost: func(*resource) int64 {
		if panics {
			panic("no size")
		}
		return 7
	}})
	r := newResource()
	job := submit(t, m, give(r))
	err := job.Wait(ctx)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, err, ErrPanic)
	require.ErrorContains(t, err, "no size")
	_, err = job.Result()
	require.ErrorIs(t, err, ErrFailed)
	require.Eventually(t, func() bool { return r.refs.Load() == 0 }, 30*time.Second, time.Millisecond, "the result is released")
	require.EqualValues(t, 1, m.Stats().Failed)

	panics = false
	run(t, m)
	require.EqualValues(t, 1, m.Stats().Succeeded)
}
