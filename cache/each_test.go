package cache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachShowsWhatCanBeFound(t *testing.T) {
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
