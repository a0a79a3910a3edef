package task

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// joining is a task that waits for the work until the gate opens or the task is cancelled.
func joining(w *Work, g *gate) func(context.Context) (*resource, error) {
	return func(inner context.Context) (*resource, error) {
		leave, err := w.Join(inner)
		if err != nil {
			return nil, err
		}
		defer leave()
		if _, err := g.wait(inner); err != nil {
			return nil, err
		}
		return newResource(), nil
	}
}

func TestWorkRunsOnTheWorkerOfOneWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 2})
		var w Work
		inner := w.Context(ctx)
		_, ok := ID(inner)
		require.False(t, ok, "nobody waits")
		Report(inner, 1, 5, "early")

		g := newGate()
		var tasks []*Task[*resource]
		for range 3 {
			tasks = append(tasks, submit(t, m, joining(&w, g)))
			synctest.Wait()
			require.Equal(t, 1, m.Stats().Busy, "one lends its worker, the others give theirs away")
		}
		id, ok := ID(inner)
		require.True(t, ok)
		require.Equal(t, tasks[0].ID(), id)
		require.Equal(t, Progress{1, 5, "early"}, tasks[2].Status().Progress, "what was reported before it came")
		Report(inner, 2, 5, "late")
		for _, task := range tasks {
			require.Equal(t, Progress{2, 5, "late"}, task.Status().Progress)
		}

		waited := newGate()
		done := make(chan struct{})
		go waiter(inner, done, waited)
		synctest.Wait()
		require.Zero(t, m.Stats().Busy, "what the work waits for occupies no worker")
		close(waited.opened)
		<-done
		require.Equal(t, 1, m.Stats().Busy)

		require.True(t, tasks[0].Cancel(nil))
		synctest.Wait()
		require.Equal(t, Cancelled, state(tasks[0]))
		require.Equal(t, 1, m.Stats().Busy, "the next one lends its worker")
		id, _ = ID(inner)
		require.Equal(t, tasks[1].ID(), id)
		Report(inner, 3, 5, "")
		require.Equal(t, int64(2), tasks[0].Status().Progress.Done)
		require.Equal(t, int64(3), tasks[1].Status().Progress.Done)

		close(g.opened)
		for _, task := range tasks[1:] {
			require.NoError(t, task.Wait(ctx))
		}
		require.Zero(t, m.Stats().Busy)
		require.Empty(t, m.resuming)
		_, ok = ID(inner)
		require.False(t, ok)
	})
}

func TestWorkWhoseLenderLeavesWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		var w Work
		g, waited, other := newGate(), newGate(), newGate()
		done := make(chan struct{})
		first, second := submit(t, m, joining(&w, g)), submit(t, m, joining(&w, g))
		go waiter(w.Context(ctx), done, waited)
		synctest.Wait()
		require.Zero(t, m.Stats().Busy)
		first.Cancel(nil)
		synctest.Wait()
		require.Equal(t, Cancelled, state(first))
		require.Zero(t, m.Stats().Busy, "the work still waits")
		submit(t, m, other.wait)
		close(waited.opened)
		synctest.Wait()
		require.Empty(t, done, "the one worker is another's")
		close(other.opened)
		<-done
		require.Equal(t, 1, m.Stats().Busy)
		close(g.opened)
		require.NoError(t, second.Wait(ctx))
		require.Zero(t, m.Stats().Busy)
	})
}

func TestWorkForWhichNoTaskWaits(t *testing.T) {
	t.Parallel()
	var w Work
	leave, err := w.Join(ctx)
	require.NoError(t, err)
	done := make(chan struct{}, 1)
	opened := newGate()
	close(opened.opened)
	waiter(w.Context(ctx), done, opened)
	Report(w.Context(ctx), 1, 2, "")
	leave()
}

func TestWorkThatWouldWaitForItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		var outer, inner Work
		g := newGate()
		task := submit(t, m, joining(&outer, g))
		synctest.Wait()
		leave, err := inner.Join(outer.Context(ctx)) // the outer work waits for the inner one
		require.NoError(t, err)
		require.Equal(t, 1, m.Stats().Busy)
		id, _ := ID(inner.Context(ctx))
		require.Equal(t, task.ID(), id)
		Report(inner.Context(ctx), 4, 4, "")
		require.Equal(t, int64(4), task.Status().Progress.Done)

		for _, within := range []context.Context{outer.Context(ctx), inner.Context(ctx)} {
			_, err = outer.Join(within)
			require.ErrorIs(t, err, ErrSelf)
			require.ErrorIs(t, task.Wait(within), ErrSelf)
		}
		leave()
		close(g.opened)
		require.NoError(t, task.Wait(ctx))
		require.Zero(t, m.Stats().Busy)
	})
}

// A work may wait for a task that joins it later.
func TestWorkWaitsForATaskThatJoinsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		var w Work
		g, begin := newGate(), make(chan struct{})
		lender := submit(t, m, joining(&w, g))
		synctest.Wait()
		late := submit(t, m, func(inner context.Context) (*resource, error) {
			err := Blocking(inner, func() error { <-begin; return nil })
			if err == nil {
				_, err = w.Join(inner)
			}
			return nil, err
		})
		done := make(chan error, 1)
		go func() { done <- late.Wait(w.Context(ctx)) }()
		synctest.Wait()
		close(begin)
		require.ErrorIs(t, <-done, ErrSelf)
		close(g.opened)
		require.NoError(t, lender.Wait(ctx))
		require.Zero(t, m.Stats().Busy)
	})
}

// sharing holds works by number. Each runs once on a separate goroutine for all concurrent callers.
type sharing struct {
	mu      sync.Mutex
	running map[int]*sharedWork
	all     sync.WaitGroup
}

type sharedWork struct {
	Work
	done chan struct{}
}

// take waits for the work of that number, or until ctx ends. A work waits for one of a higher number now and then.
func (s *sharing) take(ctx context.Context, number int, seed uint64) error {
	s.mu.Lock()
	w := s.running[number]
	first := w == nil
	if first {
		w = &sharedWork{done: make(chan struct{})}
		s.running[number] = w
	}
	s.mu.Unlock()
	leave, err := w.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if first {
		s.all.Go(func() {
			s.run(w.Context(context.WithoutCancel(ctx)), w, number, rand.New(rand.NewPCG(seed, uint64(number))))
		})
	}
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (s *sharing) run(ctx context.Context, w *sharedWork, number int, rng *rand.Rand) {
	defer close(w.done)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, number)
	}()
	for range 3 {
		switch rng.IntN(4) {
		case 0:
			Report(ctx, 1, 2, "")
		case 1:
			Blocking(ctx, func() error { runtime.Gosched(); return nil })
		case 2:
			runtime.Gosched()
		default:
			if number < 3 {
				s.take(ctx, number+1+rng.IntN(3-number), rng.Uint64())
			}
		}
	}
}

// TestWorkAtRandom lets many tasks wait for works that wait for works, and leave. At the end every worker is free.
func TestWorkAtRandom(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{Workers: 3})
	s := sharing{running: map[int]*sharedWork{}}
	var all sync.WaitGroup
	for seed := range uint64(24) {
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			rng := rand.New(rand.NewPCG(seed, 8))
			for range 100 {
				if err := s.take(inner, rng.IntN(4), rng.Uint64()); err != nil {
					return nil, err
				}
			}
			return newResource(), nil
		})
		all.Go(func() {
			if seed%3 == 0 {
				runtime.Gosched()
				task.Cancel(nil)
			}
			if err := task.Wait(ctx); err != nil && seed%3 != 0 {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s.all.Wait()
	require.Zero(t, m.Stats().Busy)
	require.Empty(t, m.resuming)
}

// A wait behind a work releases the worker, gets no reports, and is refused if it closes a cycle. The error names it.
func TestWorkBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		first, second := &Work{Name: "first"}, &Work{Name: "second"}
		g := newGate()
		waits := submit(t, m, func(ctx context.Context) (*resource, error) {
			leave, err := second.Join(ctx)
			if err != nil {
				return nil, err
			}
			defer leave()
			return newResource(), first.Behind(second.Context(ctx), func() error {
				_, err := g.wait(ctx)
				return err
			})
		})
		synctest.Wait()
		require.Zero(t, m.Stats().Busy)
		Report(first.Context(ctx), 1, 2, "not for those behind it")
		require.Zero(t, waits.Status().Progress)
		unexpected := func() error { t.Error("a cycle"); return nil }
		for _, c := range []struct {
			member, goal *Work
			names        string
		}{
			{first, second, "second waits for first waits for second"}, {first, first, "first waits for first"},
		} {
			err := c.goal.Behind(c.member.Context(ctx), unexpected)
			require.ErrorIs(t, err, ErrSelf)
			require.ErrorContains(t, err, c.names)
			_, err = c.goal.Join(c.member.Context(ctx))
			require.ErrorIs(t, err, ErrSelf)
		}
		require.NoError(t, first.Behind(ctx, func() error { return nil }), "no member")
		close(g.opened)
		require.NoError(t, waits.Wait(ctx))
		require.NoError(t, second.Behind(first.Context(ctx), func() error { return nil }), "nobody waits any more")
	})
}

// Checking a wait visits each work once, although the number of ways between works doubles with each layer.
func TestWorksInDiamonds(t *testing.T) {
	t.Parallel()
	const layers = 200
	first := new(Work)
	last := first
	for range layers {
		left, right, next := new(Work), new(Work), new(Work)
		for _, w := range [][2]*Work{{left, last}, {right, last}, {next, left}, {next, right}} { // the first waits for the second
			leave, err := w[1].Join(w[0].Context(ctx))
			require.NoError(t, err)
			defer leave()
		}
		last = next
	}
	leave, err := new(Work).Join(first.Context(ctx))
	require.NoError(t, err)
	defer leave()
	Report(first.Context(ctx), 1, 1, "")
	require.ErrorIs(t, last.Behind(first.Context(ctx), func() error { return nil }), ErrSelf)
}
