package task

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShutdownDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		g := newGate()
		running, r := submit(t, m, g.wait), newResource()
		pending := submit(t, m, give(r))
		ended := make(chan error, 1)
		go func() { ended <- m.Shutdown(ctx) }()
		synctest.Wait()
		_, err := m.Submit(ctx, Spec{Name: "late"}, g.wait)
		require.ErrorIs(t, err, ErrShutdown)
		require.ErrorContains(t, err, `"late"`)
		require.Empty(t, ended)

		close(g.opened)
		require.NoError(t, <-ended)
		require.NoError(t, running.Err())
		require.NoError(t, pending.Err(), "what was accepted was done")
		require.Zero(t, g.result.refs.Load())
		require.Zero(t, r.refs.Load())
		require.Empty(t, m.List(Filter{}))
	})
}

func TestShutdownThatHasNoTimeCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 2})
		obedient, stubborn := newGate(), newGate()
		a, b := submit(t, m, obedient.wait), submit(t, m, stubborn.stubborn)
		pending := submit(t, m, give(newResource()))
		done, old := func() (*Task[*resource], *resource) {
			other := newManager(t, Options[*resource]{})
			return run(t, other)
		}()
		require.NoError(t, done.Err())
		require.Equal(t, int32(1), old.refs.Load())

		cause := errors.New("no time")
		short, cancel := context.WithTimeoutCause(ctx, time.Second, cause)
		defer cancel()
		start := time.Now()
		err := m.Shutdown(short)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "still running")
		require.Equal(t, time.Second, time.Since(start), "Shutdown does not wait for runs that ignore cancellation")
		require.ErrorIs(t, a.Wait(ctx), ErrShutdown)
		require.ErrorIs(t, a.Err(), ErrCancelled)
		require.ErrorIs(t, obedient.cause, ErrShutdown)
		require.ErrorIs(t, pending.Err(), ErrShutdown)
		require.Equal(t, Running, state(b))

		again := make(chan error, 1)
		go func() { again <- m.Shutdown(ctx) }()
		synctest.Wait()
		require.Empty(t, again)
		close(stubborn.opened)
		require.NoError(t, <-again, "the next call waits for the rest")
		require.ErrorIs(t, b.Err(), ErrCancelled)
		require.Zero(t, stubborn.result.refs.Load(), "what ends later is released all the same")
		require.Empty(t, m.tasks)
	})
}

func TestTaskThatEndsAfterShutdownLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		g := newGate()
		task := submit(t, m, g.stubborn)
		now, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, m.Shutdown(now), context.Canceled)
		close(g.opened)
		<-task.Done()
		synctest.Wait()
		require.Zero(t, g.result.refs.Load())
		require.Empty(t, m.tasks)
		require.Nil(t, m.timer)
	})
}

func TestShutdownAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		task := submit(t, m, newGate().wait)
		now, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, m.Shutdown(now), context.Canceled)
		require.ErrorIs(t, task.Wait(ctx), ErrShutdown)
	})
}

func TestShutdownOfNothing(t *testing.T) {
	t.Parallel()
	m := New(Options[int]{})
	require.NoError(t, m.Shutdown(ctx))
	require.NoError(t, m.Shutdown(ctx))
}

func TestResultsCanBeFetchedWhileOthersDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		g := newGate()
		submit(t, m, g.wait)
		task, r := run(t, m)
		go m.Shutdown(ctx)
		synctest.Wait()
		_, err := task.Result()
		require.NoError(t, err)
		require.Equal(t, int32(1), r.refs.Load())
		close(g.opened)
		synctest.Wait()
		require.Zero(t, r.refs.Load())
	})
}

// A running task may submit tasks during Shutdown, as it may not end without them. Others may not.
func TestShutdownAcceptsTasksOfTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		begin := newGate()
		var last context.Context
		parent := submit(t, m, func(ctx context.Context) (*resource, error) {
			last = ctx
			if _, err := begin.wait(ctx); err != nil {
				return nil, err
			}
			var w Work
			leave, err := w.Join(ctx)
			if err != nil {
				return nil, err
			}
			defer leave()
			child, err := m.Submit(w.Context(ctx), Spec{Name: "child"}, func(ctx context.Context) (*resource, error) {
				grandchild, err := m.Submit(ctx, Spec{Name: "grandchild"}, give(newResource()))
				if err != nil {
					return nil, err
				}
				return newResource(), grandchild.Wait(ctx)
			})
			if err != nil {
				return nil, err
			}
			return newResource(), child.Wait(ctx)
		})
		ended := make(chan error, 1)
		go func() { ended <- m.Shutdown(ctx) }()
		synctest.Wait()
		_, err := m.Submit(ctx, Spec{Name: "foreign"}, give(newResource()))
		require.ErrorIs(t, err, ErrShutdown)
		close(begin.opened)
		require.NoError(t, <-ended)
		require.NoError(t, parent.Err())
		_, err = m.Submit(context.WithoutCancel(last), Spec{Name: "of an ended task"}, give(newResource()))
		require.ErrorIs(t, err, ErrShutdown)
	})
}
