package task

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
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

// Ended is called exactly once for each way in which a task ends, without locks, when the task has its outcome.
func TestEndedIsCalledOnce(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for what, c := range map[string]struct {
		fn     func(*gate) func(context.Context) (*resource, error)
		before bool // cancelled before a worker is free
		end    func(m *Manager[*resource], task *Task[*resource], g *gate)
		err    error
	}{
		"success": {fn: func(g *gate) func(context.Context) (*resource, error) { return give(g.result) }},
		"failure": {fn: func(*gate) func(context.Context) (*resource, error) {
			return func(context.Context) (*resource, error) { return nil, broken }
		}, err: broken},
		"panic": {fn: func(*gate) func(context.Context) (*resource, error) {
			return func(context.Context) (*resource, error) { panic(broken) }
		}, err: broken},
		"goexit": {fn: func(*gate) func(context.Context) (*resource, error) {
			return func(context.Context) (*resource, error) { runtime.Goexit(); return nil, nil }
		}, err: ErrGoexit},
		"cancelled while it runs": {
			fn:  func(g *gate) func(context.Context) (*resource, error) { return g.wait },
			end: func(_ *Manager[*resource], task *Task[*resource], _ *gate) { task.Cancel(nil) }, err: ErrCancelled,
		},
		"cancelled before it runs": {
			fn: func(g *gate) func(context.Context) (*resource, error) { return give(g.result) }, before: true,
			end: func(_ *Manager[*resource], task *Task[*resource], _ *gate) { task.Cancel(nil) }, err: ErrCancelled,
		},
		"shutdown": {
			fn: func(g *gate) func(context.Context) (*resource, error) { return g.wait },
			end: func(m *Manager[*resource], _ *Task[*resource], _ *gate) {
				now, cancel := context.WithCancel(ctx)
				cancel()
				_ = m.Shutdown(now) // returns the same error as now
			}, err: ErrShutdown,
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, Options[*resource]{Workers: 1})
			busy := newGate()
			if c.before {
				submit(t, m, busy.wait)
			}
			g, calls, outcomes := newGate(), atomic.Int32{}, make(chan error, 2)
			task, err := m.Submit(ctx, Spec{Name: "job", Ended: func(err error) {
				calls.Add(1)
				m.List(Filter{}) // would deadlock with the lock held
				outcomes <- err
			}}, c.fn(g))
			require.NoError(t, err)
			if c.end != nil {
				c.end(m, task, g)
			}
			got := <-outcomes
			require.ErrorIs(t, got, c.err)
			require.Equal(t, task.Err(), got)
			close(busy.opened)
			require.NoError(t, m.Shutdown(ctx))
			require.EqualValues(t, 1, calls.Load())
			_, err = m.Submit(ctx, Spec{Name: "late", Ended: func(error) { calls.Add(1) }}, c.fn(g))
			require.ErrorIs(t, err, ErrShutdown)
			require.EqualValues(t, 1, calls.Load(), "a task that was not submitted does not end")
		})
	}
}
