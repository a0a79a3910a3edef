package task

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCancelPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		g := newGate()
		submit(t, m, g.wait)
		task := submit(t, m, func(context.Context) (*resource, error) { panic("must not run") })
		require.True(t, task.Cancel(nil))
		require.False(t, task.Cancel(nil), "it has ended")
		err := task.Wait(ctx)
		require.ErrorIs(t, err, ErrCancelled)
		require.Equal(t, `task "job" (ID) was cancelled`, replaceID(err.Error(), task.ID()))
		require.Zero(t, task.Status().StartedAt)
		require.Equal(t, Stats{Submitted: 2, Cancelled: 1, Running: 1, Kept: 1, Busy: 1}, m.Stats())
		close(g.opened)
	})
}

func TestCancelRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		g, tidied := newGate(), make(chan struct{})
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			defer func() { <-tidied }()
			return g.wait(inner)
		})
		cause := errors.New("the client went away")
		require.True(t, task.Cancel(cause))
		require.True(t, task.Cancel(errors.New("another")), "the first cause is kept")
		close(tidied)
		err := task.Wait(ctx)
		require.ErrorIs(t, err, ErrCancelled)
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, ErrFailed)
		require.Equal(t, `task "job" (ID) was cancelled: the client went away`, replaceID(err.Error(), task.ID()))
		require.ErrorIs(t, g.cause, cause, "the function could see it")
		require.False(t, task.Status().Cancelling)
	})
}

// A wait for a cancelled task returns ErrCancelled with a message.
func TestWaitForCancelledTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		task := submit(t, m, newGate().wait)
		waiting := make(chan error, 1)
		go func() { waiting <- task.Wait(ctx) }()
		synctest.Wait()
		task.Cancel(nil)
		for _, err := range []error{<-waiting, task.Wait(ctx), task.Err()} {
			var ended *Error
			require.ErrorAs(t, err, &ended)
			require.Equal(t, Cancelled, ended.State)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, ErrFailed)
			require.NotEmpty(t, err.Error())
		}
	})
}

func TestCancelledTaskThatSucceedsAllTheSameIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		g := newGate()
		task := submit(t, m, g.stubborn)
		synctest.Wait()
		require.True(t, task.Cancel(nil))
		require.Equal(t, Running, state(task), "the function has not returned")
		require.True(t, task.Status().Cancelling)
		close(g.opened)
		require.ErrorIs(t, task.Wait(ctx), ErrCancelled)
		synctest.Wait()
		require.Zero(t, g.result.refs.Load(), "what nobody can fetch is released")
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		g := newGate()
		task := submit(t, m, g.wait)
		cause := errors.New("no patience")
		short, cancel := context.WithTimeoutCause(ctx, time.Second, cause)
		defer cancel()
		require.ErrorIs(t, task.Wait(short), cause)
		_, err := task.Watch(short, 2)
		require.ErrorIs(t, err, cause)
		require.Equal(t, Running, state(task), "the task goes on")
		close(g.opened)
		<-task.Done()
		require.NoError(t, task.Wait(short), "an end that is there costs no waiting")
	})
}
