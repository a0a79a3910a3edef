package task

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestTasksThatWaitForTasksDoNotDeadlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		var running, most atomic.Int32
		work := func() {
			most.Store(max(most.Load(), running.Add(1)))
			running.Add(-1)
		}
		var nest func(depth int) func(context.Context) (*resource, error)
		nest = func(depth int) func(context.Context) (*resource, error) {
			return func(inner context.Context) (*resource, error) {
				work()
				defer work()
				if depth == 0 {
					return newResource(), nil
				}
				child, err := m.Submit(inner, Spec{Name: "child"}, nest(depth-1))
				if err != nil {
					return nil, err
				}
				if err := child.Wait(inner); err != nil {
					return nil, err
				}
				work()
				return newResource(), nil
			}
		}
		task := submit(t, m, nest(5))
		require.NoError(t, task.Wait(ctx))
		require.Equal(t, int32(1), most.Load(), "one at a time computes")
		require.Zero(t, m.Stats().Busy)
		_, err := task.Result()
		require.NoError(t, err)
	})
}

func TestTaskTakesAWorkerAgainAfterItWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		waited, resumed := newGate(), newGate()
		var back atomic.Bool
		first := submit(t, m, func(inner context.Context) (*resource, error) {
			err := Blocking(inner, func() error { _, err := waited.wait(inner); return err })
			back.Store(true)
			resumed.wait(inner)
			return newResource(), err
		})
		synctest.Wait()
		second, third := newGate(), newGate()
		other, last := submit(t, m, second.wait), submit(t, m, third.wait)
		synctest.Wait()
		require.Equal(t, []State{Running, Running, Pending}, []State{state(first), state(other), state(last)})

		close(waited.opened)
		synctest.Wait()
		require.False(t, back.Load(), "the worker is another's")
		close(second.opened)
		synctest.Wait()
		require.True(t, back.Load(), "it comes before those that have not started")
		require.Equal(t, Pending, state(last))
		require.Equal(t, 1, m.Stats().Busy)
		close(resumed.opened)
		close(third.opened)
		require.NoError(t, last.Wait(ctx))
		require.NoError(t, first.Wait(ctx))
	})
}

func TestTaskQueuesForAWorkerEachTimeItComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		gates := []*gate{newGate(), newGate()}
		var rounds atomic.Int32
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			for _, g := range gates {
				Blocking(inner, func() error { <-g.opened; return nil })
				rounds.Add(1)
			}
			return newResource(), nil
		})
		for i, g := range gates {
			other := newGate()
			submit(t, m, other.wait)
			synctest.Wait()
			close(g.opened)
			synctest.Wait()
			require.Equal(t, int32(i), rounds.Load(), "the worker is another's")
			close(other.opened)
			synctest.Wait()
			require.Equal(t, int32(i+1), rounds.Load())
		}
		require.NoError(t, task.Wait(ctx))
	})
}

func TestCancelledTaskDoesNotWaitForAWorkerToEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		waited := newGate()
		first := submit(t, m, func(inner context.Context) (*resource, error) {
			return newResource(), Blocking(inner, func() error { <-waited.opened; return nil })
		})
		synctest.Wait()
		second := newGate()
		submit(t, m, second.wait)
		synctest.Wait()
		close(waited.opened)
		synctest.Wait()
		require.Equal(t, Running, state(first), "waits for the worker")
		require.True(t, first.Cancel(nil))
		require.ErrorIs(t, first.Wait(ctx), ErrCancelled)
		require.Equal(t, 1, m.Stats().Busy)
		require.Empty(t, m.resuming)
		close(second.opened)
	})
}

func TestSeveralGoroutinesOfOneTaskMayWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		a, b, c := newGate(), newGate(), newGate()
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			done := make(chan error, 2)
			for _, g := range []*gate{a, b} {
				go func() { done <- Blocking(inner, func() error { _, err := g.wait(inner); return err }) }()
			}
			err := errors.Join(<-done, <-done)
			c.wait(inner)
			return newResource(), err
		})
		synctest.Wait()
		require.Zero(t, m.Stats().Busy)
		close(a.opened)
		synctest.Wait()
		require.Zero(t, m.Stats().Busy, "one still waits")
		run(t, m)
		close(b.opened)
		synctest.Wait()
		require.Equal(t, 1, m.Stats().Busy)
		close(c.opened)
		require.NoError(t, task.Wait(ctx))
		require.Zero(t, m.Stats().Busy)
	})
}

// waiter is a goroutine of a task that waits at one gate after another.
func waiter(inner context.Context, done chan<- struct{}, gates ...*gate) {
	for _, g := range gates {
		Blocking(inner, func() error { <-g.opened; return nil })
	}
	done <- struct{}{}
}

func TestGoroutineThatComesBackWhileAnotherWaitsTakesNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		a, b, other, pending := newGate(), newGate(), newGate(), newGate()
		begin, done := make(chan struct{}), make(chan struct{}, 2)
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			go waiter(inner, done, a)
			go func() { <-begin; waiter(inner, done, b) }()
			<-done
			<-done
			return newResource(), nil
		})
		synctest.Wait()
		submit(t, m, other.wait)
		close(a.opened)
		synctest.Wait()
		require.Len(t, m.resuming, 1)
		close(begin)
		last := submit(t, m, pending.wait)
		synctest.Wait()
		close(other.opened)
		synctest.Wait()
		require.Equal(t, Running, state(last), "the worker was not taken for a task of which something waits")
		require.Equal(t, 1, m.Stats().Busy)
		close(b.opened)
		close(pending.opened)
		require.NoError(t, task.Wait(ctx))
		require.Zero(t, m.Stats().Busy)
	})
}

func TestGoroutinesThatComeBackShareOneWorker(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			m := newManager(t, Options[*resource]{Workers: workers})
			a, b, other, end := newGate(), newGate(), newGate(), newGate()
			begin, done := make(chan struct{}), make(chan struct{}, 2)
			task := submit(t, m, func(inner context.Context) (*resource, error) {
				go waiter(inner, done, a)
				go func() { <-begin; waiter(inner, done, b) }()
				<-done
				<-done
				return end.wait(inner)
			})
			synctest.Wait()
			other.result.refs.Store(2)
			for range 2 {
				submit(t, m, other.wait)
			}
			synctest.Wait()
			close(a.opened)
			synctest.Wait()
			close(begin)
			synctest.Wait()
			close(b.opened)
			synctest.Wait()
			require.Empty(t, done, "the workers are taken")
			close(other.opened)
			synctest.Wait()
			require.Len(t, m.resuming, 0)
			require.Equal(t, 1, m.Stats().Busy)
			close(end.opened)
			require.NoError(t, task.Wait(ctx))
			synctest.Wait()
			require.Zero(t, m.Stats().Busy)
		})
	}
}

func TestGoroutineThatATaskLeftBehindTakesNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		g := newGate()
		left := make(chan struct{})
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			go func() {
				defer close(left)
				Blocking(inner, func() error { <-g.opened; return nil })
				Report(inner, 1, 2, "too late")
			}()
			synctest.Wait()
			return newResource(), nil
		})
		require.NoError(t, task.Wait(ctx))
		close(g.opened)
		<-left
		require.Zero(t, m.Stats().Busy)
		require.Zero(t, task.Status().Progress)
		run(t, m)
	})
}

func TestTaskThatWaitsForItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		self := make(chan *Task[*resource], 1)
		task := submit(t, m, func(inner context.Context) (*resource, error) { return nil, (<-self).Wait(inner) })
		self <- task
		require.ErrorIs(t, task.Wait(ctx), ErrSelf)
	})
}

// Of two tasks that wait for each other, the second fails with ErrSelf.
func TestTasksThatWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		var first, second *Task[*resource]
		begin := make(chan struct{})
		first = submit(t, m, func(inner context.Context) (*resource, error) {
			<-begin
			_ = second.Wait(inner)
			return newResource(), nil
		})
		second = submit(t, m, func(inner context.Context) (*resource, error) { return nil, first.Wait(inner) })
		close(begin)
		require.ErrorIs(t, second.Wait(ctx), ErrSelf)
		require.NoError(t, first.Wait(ctx))
		require.Empty(t, first.waiting)
		require.Empty(t, second.waiting)
	})
}

func TestBlockingOutsideATask(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, Blocking(ctx, func() error { return io.EOF }), io.EOF)
}
