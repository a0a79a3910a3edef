package cache

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestNilValueIsCached(t *testing.T) {
	t.Parallel()
	c := New(Options[any]{})
	builds := 0
	load := func(context.Context) (any, error) { builds++; return nil, nil }
	for range 2 {
		ref, err := c.Get(ctx, key("a"), load)
		require.NoError(t, err)
		require.Nil(t, ref.Value())
		require.NoError(t, ref.Close())
	}
	require.Equal(t, 1, builds)
	require.True(t, c.Invalidate(key("a")), "there was one")
	require.False(t, c.Invalidate(key("a")))
	require.NoError(t, c.Close(ctx))
}

func TestInvalidateDuringBuildDropsItsResult(t *testing.T) {
	t.Parallel()
	invalidations := map[string]func(*Cache[*resource]) int{
		"key": func(c *Cache[*resource]) int {
			if c.Invalidate(key("a")) {
				return 1
			}
			return 0
		},
		"group": func(c *Cache[*resource]) int { return c.InvalidateGroup("g") },
	}
	for name, invalidate := range invalidations {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache(t, Options[*resource]{})
				stale, fresh := newGate(), newGate()
				before := getting(ctx, c, "a", stale.load)
				synctest.Wait()
				require.Equal(t, 1, invalidate(c))
				require.Equal(t, 0, invalidate(c), "void already")
				after := getting(ctx, c, "a", fresh.load)
				synctest.Wait()
				require.Equal(t, int32(1), fresh.starts.Load(), "who asks after the invalidation does not join the stale build")

				close(fresh.opened)
				o := <-after
				require.NoError(t, o.err)
				require.NoError(t, o.ref.Close())
				close(stale.opened)
				o = <-before
				require.NoError(t, o.err)
				require.Same(t, stale.value, o.ref.Value(), "who asked before gets what he asked for")
				require.False(t, stale.value.isClosed())
				require.NoError(t, o.ref.Close())
				require.True(t, stale.value.isClosed(), "and nobody else does")

				ref, ok := c.Lookup(key("a"))
				require.True(t, ok)
				require.Same(t, fresh.value, ref.Value())
				require.NoError(t, ref.Close())
			})
		})
	}
}

func TestInvalidateGroupCounts(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	a, b := put(t, c, "a", 1), put(t, c, "b", 1)
	other, err := c.Get(ctx, Key{"other", "a"}, give(&resource{}))
	require.NoError(t, err)
	pinned, _ := c.Lookup(key("b"))
	require.Equal(t, 2, c.InvalidateGroup("g"))
	require.Zero(t, c.InvalidateGroup("g"))
	require.True(t, a.isClosed())
	require.False(t, b.isClosed(), "pinned values stay valid")
	require.NoError(t, pinned.Close())
	require.True(t, b.isClosed())
	require.Equal(t, 1, c.InvalidateGroup("other"))
	require.False(t, other.Value().isClosed())
	require.NoError(t, other.Close())
	require.True(t, other.Value().isClosed())
	require.Equal(t, uint64(3), c.Stats().Invalidations)
}

func TestDroppedKeysLeaveNoState(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{Entries: 2, TTL: ttl})
	for _, id := range []string{"a", "b", "c", "d"} {
		put(t, c, id, 1)
	}
	_, err := c.Get(ctx, Key{"failing", "a"}, unexpected)
	require.Error(t, err)
	c.Invalidate(key("d"))
	c.InvalidateGroup("g")
	require.Empty(t, c.groups)
	require.Empty(t, c.flights)
	require.Empty(t, c.builds)
	require.Zero(t, c.idle.Len())
	require.Zero(t, c.aging.Len())
	require.Zero(t, c.Stats().Bytes)
}
