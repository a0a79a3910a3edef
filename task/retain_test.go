package task

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDroppedTaskHoldsNoMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{TTL: ttl})
		task, r := run(t, m)
		time.Sleep(ttl - 1)
		require.Equal(t, int32(1), r.refs.Load())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Zero(t, r.refs.Load(), "the timer released it, nobody asked")

		require.Nil(t, task.result)
		require.Nil(t, task.fn)
		require.Nil(t, task.ctx)
		_, err := m.Get(task.ID())
		require.ErrorIs(t, err, ErrNotFound)
		_, err = task.Result()
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, task.Wait(ctx), "one who has the task still learns how it ended")
		require.Equal(t, Succeeded, state(task))
		drop(task) // twice
		require.Zero(t, r.refs.Load())
	})
}

func TestTimerIsSetAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{TTL: ttl})
		forgotten, _ := run(t, m)
		time.Sleep(ttl / 2)
		_, second := run(t, m)
		drop(forgotten)
		time.Sleep(ttl/2 + 1)
		synctest.Wait()
		require.Equal(t, int32(1), second.refs.Load(), "not its time")
		time.Sleep(ttl / 2)
		synctest.Wait()
		require.Zero(t, second.refs.Load())
		_, third := run(t, m)
		time.Sleep(ttl)
		synctest.Wait()
		require.Zero(t, third.refs.Load())
	})
}

func TestNegativeTTLKeepsForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{TTL: -1})
		_, r := run(t, m)
		time.Sleep(1000 * time.Hour)
		synctest.Wait()
		require.Equal(t, int32(1), r.refs.Load())
	})
}

func TestRetainByCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Retain: 2})
		first, a := run(t, m)
		_, b := run(t, m)
		_, c := run(t, m)
		synctest.Wait()
		require.Zero(t, a.refs.Load())
		require.Equal(t, int32(1), b.refs.Load())
		require.Equal(t, int32(1), c.refs.Load())
		_, err := m.Get(first.ID())
		require.ErrorIs(t, err, ErrNotFound)
	})
}

func TestRetainNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Retain: -1})
		task, r := run(t, m)
		synctest.Wait()
		require.Zero(t, r.refs.Load())
		require.NoError(t, task.Err())
		require.Empty(t, m.List(Filter{}))
	})
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Capacity: 3, Workers: 2})
		first, a := run(t, m)
		second, b := run(t, m)
		g := newGate()
		submit(t, m, g.wait)
		submit(t, m, g.wait)
		require.Zero(t, a.refs.Load(), "the one that finished first made room")
		require.Equal(t, int32(1), b.refs.Load())
		_, err := m.Get(first.ID())
		require.ErrorIs(t, err, ErrNotFound)
		submit(t, m, g.wait)
		_, err = m.Get(second.ID())
		require.ErrorIs(t, err, ErrNotFound)

		_, err = m.Submit(ctx, Spec{Name: "one too many"}, g.wait)
		require.ErrorIs(t, err, ErrCapacity)
		require.ErrorContains(t, err, "one too many")
		g.result.refs.Store(3)
		close(g.opened)
	})
}

func TestPlainResults(t *testing.T) {
	t.Parallel()
	m := New(Options[any]{})
	task, err := m.Submit(ctx, Spec{}, func(context.Context) (any, error) { return nil, nil })
	require.NoError(t, err)
	require.NoError(t, task.Wait(ctx))
	v, err := task.Result()
	require.NoError(t, err)
	require.Nil(t, v)
	require.NoError(t, m.Shutdown(ctx))
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{Workers: 1})
		g := newGate()
		add := func(name string, owner uint64, fn func(context.Context) (*resource, error)) string {
			task, err := m.Submit(ctx, Spec{Name: name, Owner: owner}, fn)
			require.NoError(t, err)
			synctest.Wait()
			return task.ID()
		}
		a := add("load", 1, give(newResource()))
		b := add("load", 2, g.wait)
		c := add("save", 1, give(newResource()))
		tests := []struct {
			filter Filter
			want   []string
		}{
			{Filter{}, []string{a, b, c}},
			{Filter{Name: "load"}, []string{a, b}},
			{Filter{Owner: 1}, []string{a, c}},
			{Filter{States: []State{Running, Pending}}, []string{b, c}},
			{Filter{States: []State{Succeeded}, Owner: 2}, nil},
		}
		for _, test := range tests {
			var got []string
			for _, s := range m.List(test.filter) {
				got = append(got, s.ID)
			}
			require.Equal(t, test.want, got, "%+v", test.filter)
		}
		close(g.opened)
	})
}
