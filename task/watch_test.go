package task

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWatchFollowsATask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{})
		step := make(chan struct{})
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			for i := range int64(3) {
				<-step
				Report(inner, i+1, 3, fmt.Sprintf("part %d", i+1))
			}
			<-step
			return newResource(), nil
		})
		synctest.Wait()
		s, err := task.Watch(ctx, 0)
		require.NoError(t, err)
		require.Equal(t, Running, s.State)
		for i := range int64(3) {
			next := make(chan Status, 2)
			for range 2 {
				go func() {
					s, err := task.Watch(ctx, s.Seq)
					require.NoError(t, err)
					next <- s
				}()
			}
			synctest.Wait()
			require.Empty(t, next, "nothing has changed")
			step <- struct{}{}
			first, second := <-next, <-next
			require.Equal(t, first, second, "all who watch are told")
			require.Equal(t, Progress{i + 1, 3, fmt.Sprintf("part %d", i+1)}, first.Progress)
			require.Greater(t, first.Seq, s.Seq)
			s = first
		}
		close(step)
		s, err = task.Watch(ctx, s.Seq)
		require.NoError(t, err)
		require.Equal(t, Succeeded, s.State)
		s, err = task.Watch(ctx, s.Seq)
		require.NoError(t, err, "a finished task is not waited for")
		require.Equal(t, int64(3), s.Progress.Done)
	})
}

func TestReport(t *testing.T) {
	t.Parallel()
	Report(ctx, 1, 2, "outside a task")

	m := newManager(t, Options[*resource]{})
	task := submit(t, m, func(inner context.Context) (*resource, error) {
		Report(inner, 1, 0, strings.Repeat("é", 600)+"\xff")
		return newResource(), nil
	})
	require.NoError(t, task.Wait(ctx))
	p := task.Status().Progress
	require.Len(t, p.Message, 1024)
	Report(ctx, 1, 0, "x")

	task = submit(t, m, func(inner context.Context) (*resource, error) {
		Report(inner, 1, 0, "x"+strings.Repeat("é", 600))
		return newResource(), nil
	})
	require.NoError(t, task.Wait(ctx))
	p = task.Status().Progress
	require.Len(t, p.Message, 1023, "no half character")
	require.True(t, utf8.ValidString(p.Message))
}

func TestWatchInATaskOccupiesNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		task := submit(t, m, func(inner context.Context) (*resource, error) {
			child, err := m.Submit(inner, Spec{}, func(inner context.Context) (*resource, error) {
				Report(inner, 1, 1, "")
				return newResource(), nil
			})
			if err != nil {
				return nil, err
			}
			for s := child.Status(); !s.State.Terminal(); {
				if s, err = child.Watch(inner, s.Seq); err != nil {
					return nil, err
				}
			}
			return newResource(), nil
		})
		require.NoError(t, task.Wait(ctx))
	})
}

func TestSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		woken := 0
		s := m.Subscribe(Filter{Owner: 1, States: []State{Failed}}, func() {
			woken++
			m.List(Filter{}) // would deadlock with the lock held
		})
		g := newGate()
		mine, err := m.Submit(ctx, Spec{Name: "mine", Owner: 1}, g.wait)
		require.NoError(t, err)
		_, err = m.Submit(ctx, Spec{Name: "another's", Owner: 2}, give(newResource()))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, woken)
		changes, complete := s.Next()
		require.True(t, complete)
		require.Len(t, changes, 2)
		require.Equal(t, Pending, changes[0].State)
		require.Equal(t, mine.Status(), changes[1])
		changes, _ = s.Next()
		require.Empty(t, changes)

		close(g.opened)
		require.NoError(t, mine.Wait(ctx))
		drop(mine)
		synctest.Wait()
		require.Equal(t, 2, woken)
		changes, _ = s.Next()
		require.Equal(t, []Status{mine.Status()}, changes, "dropped meanwhile, and told all the same")
		s.Close()
		s.Close()
		_, err = m.Submit(ctx, Spec{Owner: 1}, give(newResource()))
		require.NoError(t, err)
		changes, _ = s.Next()
		require.Empty(t, changes)
		require.Equal(t, 2, woken)
	})
}

// A subscription that is read rarely still reports every state, including those of a task that started, ended and was
// dropped meanwhile. Progress is the newest.
func TestSubscriptionTellsEveryState(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{Workers: 1, Retain: -1})
	s := m.Subscribe(Filter{}, nil)
	defer s.Close()
	g := newGate()
	first := submit(t, m, func(inner context.Context) (*resource, error) {
		for i := range int64(50) {
			Report(inner, i, 50, "")
		}
		return g.wait(inner)
	})
	second := submit(t, m, give(newResource()))
	close(g.opened)
	require.NoError(t, first.Wait(ctx))
	require.NoError(t, second.Wait(ctx))
	_, err := m.Get(first.ID())
	require.ErrorIs(t, err, ErrNotFound)
	changes, complete := s.Next()
	require.True(t, complete)
	states := map[string][]State{}
	for i, c := range changes {
		states[c.ID] = append(states[c.ID], c.State)
		if c.ID == first.ID() && c.State == Running {
			require.EqualValues(t, 49, c.Progress.Done)
		}
		if i > 0 && c.ID == changes[i-1].ID {
			require.Greater(t, c.Seq, changes[i-1].Seq)
		}
	}
	all := []State{Pending, Running, Succeeded}
	require.Equal(t, map[string][]State{first.ID(): all, second.ID(): all}, states)

	only := m.Subscribe(Filter{ID: "another"}, nil)
	defer only.Close()
	run(t, m)
	changes, _ = only.Next()
	require.Empty(t, changes)
}

func TestSlowSubscriptionHoldsABoundedNumberOfChanges(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{Capacity: 3})
	s := m.Subscribe(Filter{}, nil)
	defer s.Close()
	var last *Task[*resource]
	for range 10 {
		last, _ = run(t, m)
		require.LessOrEqual(t, len(s.changes), 3)
	}
	changes, complete := s.Next()
	require.False(t, complete)
	require.Equal(t, last.ID(), changes[len(changes)-1].ID)
	run(t, m)
	_, complete = s.Next()
	require.True(t, complete)
}

func TestEachResultShowsWhatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{TTL: ttl})
		seen := func() map[string]*resource {
			all := map[string]*resource{}
			m.EachResult(func(id string, r *resource) { all[id] = r })
			return all
		}
		first, r := run(t, m)
		require.Error(t, submit(t, m, func(context.Context) (*resource, error) { return nil, errors.New("no") }).Wait(ctx))
		running := submit(t, m, func(ctx context.Context) (*resource, error) { <-ctx.Done(); return nil, ctx.Err() })
		require.Equal(t, map[string]*resource{first.ID(): r}, seen(), "those that failed or run have none")
		require.EqualValues(t, 1, r.refs.Load())
		time.Sleep(ttl)
		synctest.Wait()
		require.Empty(t, seen())
		require.EqualValues(t, 2, m.Stats().Expired)
		forgotten, _ := run(t, m)
		drop(forgotten)
		require.EqualValues(t, 2, m.Stats().Expired, "age is not what dropped it")
		require.True(t, running.Cancel(nil))
	})
}
