package cache

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

func TestBudgetDropsWhatWasUsedLongestAgo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		opts Options[*resource]
		cost int64
	}{
		{"entries", Options[*resource]{Entries: 3}, 1},
		{"bytes", Options[*resource]{Bytes: 30}, 10},
		{"bytes without a bound on entries", Options[*resource]{Entries: -1, Bytes: 39}, 10},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache(t, test.opts)
				a, b := put(t, c, "a", test.cost), put(t, c, "b", test.cost)
				put(t, c, "c", test.cost)
				require.True(t, has(c, "a"), "used again")
				put(t, c, "d", test.cost)
				require.False(t, has(c, "b"), "the one used longest ago")
				require.True(t, has(c, "a") && has(c, "c") && has(c, "d"))
				require.Equal(t, uint64(1), c.Stats().Evictions)
				synctest.Wait()
				require.True(t, b.isClosed())
				require.False(t, a.isClosed())
			})
		})
	}
}

func TestPinnedValuesStayWhateverTheBudget(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{Entries: 1})
	var refs []*Ref[*resource]
	for i := range 3 {
		ref, err := c.Get(ctx, key(fmt.Sprint(i)), give(&resource{bytes: 5}))
		require.NoError(t, err)
		refs = append(refs, ref)
	}
	require.Equal(t, 3, c.Stats().Entries)
	require.Equal(t, 3, c.Stats().PinnedEntries)
	for _, ref := range refs {
		require.NoError(t, ref.Close())
	}
	require.Equal(t, 1, c.Stats().Entries)
	require.True(t, refs[0].Value().isClosed())
	require.True(t, refs[1].Value().isClosed())
	require.False(t, refs[2].Value().isClosed(), "fits")
}

func TestValueAboveTheBudgetDropsNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{Bytes: 100})
		small := put(t, c, "small", 100)
		ref, err := c.Get(ctx, key("large"), give(&resource{bytes: 101}))
		require.NoError(t, err)
		synctest.Wait()
		require.False(t, small.isClosed())
		require.False(t, ref.Value().isClosed(), "its user has it")
		require.True(t, has(c, "large"), "and others find it meanwhile")
		require.False(t, ref.Value().isClosed(), "a reader that leaves does not take it along")
		require.EqualValues(t, 201, c.Stats().Bytes)
		next := put(t, c, "next", 60)
		synctest.Wait() // evicted values are closed on the goroutine of the build
		require.True(t, small.isClosed(), "small ones are bounded as without it")
		require.False(t, next.isClosed())
		require.NoError(t, ref.Close())
		require.True(t, ref.Value().isClosed())
		require.False(t, has(c, "large"))
		require.False(t, next.isClosed())
		require.EqualValues(t, 60, c.Stats().Bytes)
		require.Zero(t, c.Stats().DroppedEntries)
	})
}

// Trim drops the values released first, no more than requested, and no pinned ones.
func TestTrimDropsWhatNobodyHas(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	held := put(t, c, "held", 50)
	ref, ok := c.Lookup(key("held"))
	require.True(t, ok)
	first, second, third := put(t, c, "first", 10), put(t, c, "second", 10), put(t, c, "third", 10)
	require.EqualValues(t, 20, c.Trim(11))
	require.True(t, first.isClosed())
	require.True(t, second.isClosed())
	require.False(t, third.isClosed())
	require.EqualValues(t, 10, c.Trim(1<<40))
	require.True(t, third.isClosed())
	require.False(t, held.isClosed())
	require.Zero(t, c.Trim(1<<40))
	require.NoError(t, ref.Close())
	require.True(t, has(c, "held"))
}

func TestNegativeCostCountsAsNothing(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	put(t, c, "a", -5)
	require.Zero(t, c.Stats().Bytes)
}

func TestEachReferenceIsOneOfItsOwn(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	r := put(t, c, "a", 1)
	first, _ := c.Lookup(key("a"))
	second, err := first.Clone()
	require.NoError(t, err)
	require.Equal(t, key("a"), second.Key())
	require.True(t, c.Invalidate(key("a")))

	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "closing one twice takes nothing from the other")
	require.False(t, r.isClosed())
	_, err = first.Clone()
	require.ErrorIs(t, err, ErrClosed)
	first.Discard()
	third, err := second.Clone()
	require.NoError(t, err, "a dropped value can be cloned while it is pinned")
	require.NoError(t, second.Close())
	require.NoError(t, third.Close())
	require.Equal(t, int32(1), r.closed.Load())
}

func TestDiscardDropsOnlyItsOwnValue(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	old := put(t, c, "a", 1)
	ref, _ := c.Lookup(key("a"))
	ref.Discard()
	require.False(t, has(c, "a"))
	fresh := put(t, c, "a", 1)
	ref.Discard()
	require.True(t, has(c, "a"), "another value has its key")
	require.NoError(t, ref.Close())
	require.True(t, old.isClosed())
	require.False(t, fresh.isClosed())
	require.Equal(t, uint64(1), c.Stats().Invalidations)
}

func TestTimeToLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{TTL: ttl})
		a := put(t, c, "a", 1)
		time.Sleep(ttl / 2)
		b := put(t, c, "b", 1)
		pinned, err := c.Get(ctx, key("pinned"), give(&resource{bytes: 1}))
		require.NoError(t, err)

		time.Sleep(ttl/2 - 1)
		require.True(t, has(c, "a"), "use does not make it younger, but it is not too old yet")
		time.Sleep(time.Nanosecond)
		require.False(t, has(c, "a"))
		synctest.Wait()
		require.True(t, a.isClosed(), "the timer dropped it, nobody asked")
		require.False(t, b.isClosed())

		time.Sleep(ttl / 2)
		synctest.Wait()
		require.True(t, b.isClosed())
		require.False(t, has(c, "pinned"), "pinned or not")
		require.False(t, pinned.Value().isClosed())
		require.NoError(t, pinned.Close())
		require.True(t, pinned.Value().isClosed())
		require.Equal(t, uint64(3), c.Stats().Expirations)
	})
}

func TestTimerSurvivesThatItsValueWent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{TTL: ttl})
		put(t, c, "a", 1)
		time.Sleep(ttl / 2)
		b := put(t, c, "b", 1)
		require.True(t, c.Invalidate(key("a")))
		time.Sleep(ttl)
		synctest.Wait()
		require.True(t, b.isClosed())

		late := put(t, c, "late", 1)
		time.Sleep(ttl)
		synctest.Wait()
		require.True(t, late.isClosed(), "the timer is set again after the cache was empty")
	})
}

func TestCloseEvictsAndRefuses(t *testing.T) {
	t.Parallel()
	c := New(Options[*resource]{TTL: ttl, OnEvict: func(_ Key, r *resource) { r.closed.Add(1) }})
	idle := put(t, c, "idle", 1)
	ref, err := c.Get(ctx, key("pinned"), give(&resource{}))
	require.NoError(t, err)
	require.NoError(t, c.Close(ctx))
	require.NoError(t, c.Close(ctx), "a second Close")
	require.True(t, idle.isClosed())
	require.False(t, ref.Value().isClosed())
	require.NoError(t, ref.Close())
	require.True(t, ref.Value().isClosed())
	_, err = c.Get(ctx, key("idle"), unexpected)
	require.ErrorIs(t, err, ErrClosed)
	require.False(t, has(c, "idle"))
	require.Zero(t, c.Stats().Entries)
}

func TestCloseEndsWaitersAtOnceAndWaitsForBuilds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(Options[*resource]{OnEvict: func(_ Key, r *resource) { r.closed.Add(1) }})
		g := newGate()
		waiting := getting(ctx, c, "a", g.stubborn)
		synctest.Wait()

		cause := errors.New("no time")
		short, cancel := context.WithTimeoutCause(ctx, time.Second, cause)
		defer cancel()
		require.ErrorIs(t, c.Close(short), cause)
		require.ErrorIs(t, (<-waiting).err, ErrClosed)
		close(g.opened)
		require.NoError(t, c.Close(ctx))
		synctest.Wait()
		require.Equal(t, int32(1), g.value.closed.Load(), "what was built for nobody is closed")
	})
}

func TestWithoutHooks(t *testing.T) {
	t.Parallel()
	c := New(Options[int]{Entries: 1})
	for i := range 3 {
		ref, err := c.Get(ctx, Key{"g", fmt.Sprint(i)}, func(context.Context) (int, error) { return i, nil })
		require.NoError(t, err)
		require.Equal(t, i, ref.Value())
		require.NoError(t, ref.Close())
	}
	require.Equal(t, 1, c.Stats().Entries)
	require.NoError(t, c.Close(ctx))
}

func TestKeyString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "endpoint/id", Key{"endpoint", "id"}.String())
}

func TestEachShowsWhatCanBeFound(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	put(t, c, "a", 1)
	dropped := put(t, c, "b", 2)
	pinned, ok := c.Lookup(key("b"))
	require.True(t, ok)
	defer pinned.Close()
	c.Invalidate(key("b"))
	kept := put(t, c, "c", 3)
	seen := map[Key]*resource{}
	c.Each(func(k Key, r *resource) { seen[k] = r })
	require.Len(t, seen, 2)
	require.Same(t, kept, seen[key("c")])
	require.NotContains(t, seen, key("b"))
	require.False(t, dropped.isClosed())
	require.EqualValues(t, 1, c.Stats().Hits, "looking at all is no hit")
}
