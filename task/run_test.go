package task

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStatusOfATask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		g := newGate()
		submit(t, m, g.wait)
		created := time.Now()
		task, err := m.Submit(ctx, Spec{Name: "load", Owner: 7}, give(newResource()))
		require.NoError(t, err)
		require.Len(t, task.ID(), 32)
		require.Equal(t, Status{
			ID: task.ID(), Name: "load", Owner: 7, State: Pending, Seq: 1, CreatedAt: created,
		}, task.Status())

		time.Sleep(time.Second)
		close(g.opened)
		require.NoError(t, task.Wait(ctx))
		later := created.Add(time.Second)
		require.Equal(t, Status{
			ID: task.ID(), Name: "load", Owner: 7, State: Succeeded, Seq: 3,
			CreatedAt: created, StartedAt: later, FinishedAt: later,
		}, task.Status())
		again, err := m.Get(task.ID())
		require.NoError(t, err)
		require.Same(t, task, again)
		_, err = m.Get("nothing")
		require.ErrorIs(t, err, ErrNotFound)
		require.ErrorContains(t, err, "nothing")
	})
}

func TestWorkersRunTasksInTheOrderInWhichTheyCame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 2})
		var gates []*gate
		var tasks []*Task[*resource]
		for range 4 {
			g := newGate()
			gates = append(gates, g)
			tasks = append(tasks, submit(t, m, g.wait))
		}
		synctest.Wait()
		require.Equal(t, []State{Running, Running, Pending, Pending},
			[]State{state(tasks[0]), state(tasks[1]), state(tasks[2]), state(tasks[3])})
		require.Equal(t, Stats{Submitted: 4, Pending: 2, Running: 2, Busy: 2}, m.Stats())
		close(gates[1].opened)
		synctest.Wait()
		require.Equal(t, Running, state(tasks[2]))
		require.Equal(t, Pending, state(tasks[3]))
		for _, i := range []int{0, 2, 3} {
			close(gates[i].opened)
		}
		synctest.Wait()
		require.Equal(t, Stats{Submitted: 4, Succeeded: 4, Kept: 4}, m.Stats())
	})
}

func TestHowAFunctionCanEnd(t *testing.T) {
	t.Parallel()
	failure := errors.New("no such model")
	tests := []struct {
		name string
		fn   func(context.Context) (*resource, error)
		want error
		text string
	}{
		{"error", func(context.Context) (*resource, error) { return nil, failure }, failure, `task "job" (ID) failed: no such model`},
		{"panic", func(context.Context) (*resource, error) { panic("boom") }, ErrPanic, `task "job" (ID) failed: panic: boom`},
		{"panic with an error", func(context.Context) (*resource, error) { panic(io.ErrUnexpectedEOF) }, io.ErrUnexpectedEOF, `task "job" (ID) failed: panic: unexpected EOF`},
		{"panic with nil", func(context.Context) (*resource, error) { panic(nil) }, ErrPanic, ""},
		{"goexit", func(context.Context) (*resource, error) { runtime.Goexit(); return nil, nil }, ErrGoexit, `task "job" (ID) failed: the function called runtime.Goexit`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newManager(t, Options[*resource]{Workers: 1})
			task := submit(t, m, test.fn)
			err := task.Wait(ctx)
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, err, test.want)
			require.NotErrorIs(t, err, ErrCancelled)
			if test.text != "" {
				require.Equal(t, test.text, replaceID(err.Error(), task.ID()))
			}
			var ended *Error
			require.ErrorAs(t, err, &ended)
			require.Equal(t, "job", ended.Name)
			require.Equal(t, Failed, state(task))
			_, resultErr := task.Result()
			require.Equal(t, err, resultErr)

			run(t, m) // the worker is free again
			require.Equal(t, uint64(1), m.Stats().Failed)
		})
	}
}

func TestPanicErrorHasTheStack(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{})
	err := submit(t, m, func(context.Context) (*resource, error) { panic("boom") }).Wait(ctx)
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), "TestPanicErrorHasTheStack")
	require.NotContains(t, err.Error(), "goroutine")
}

func TestContextOfTheFunction(t *testing.T) {
	t.Parallel()
	type valueKey struct{}
	m := newManager(t, Options[*resource]{})
	caller, cancel := context.WithCancel(context.WithValue(ctx, valueKey{}, "trace"))
	g := newGate()
	var task *Task[*resource]
	submitted := make(chan struct{})
	task, err := m.Submit(caller, Spec{Name: "job"}, func(inner context.Context) (*resource, error) {
		<-submitted
		require.Equal(t, "trace", inner.Value(valueKey{}))
		id, ok := ID(inner)
		require.True(t, ok)
		require.Equal(t, task.ID(), id)
		return g.wait(inner)
	})
	require.NoError(t, err)
	close(submitted)
	cancel() // has no effect on an accepted task
	close(g.opened)
	require.NoError(t, task.Wait(ctx))

	_, err = m.Submit(caller, Spec{}, give(nil))
	require.ErrorIs(t, err, context.Canceled)
	_, ok := ID(ctx)
	require.False(t, ok)
}
