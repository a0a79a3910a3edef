package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Models without a name replace only those of the same sender.
func TestUnnamedModelsOfOthersRemain(t *testing.T) {
	t.Parallel()
	m := &Models{Keep: 2}
	require.Empty(t, m.recordUnnamed("a", "received-1"))
	for _, name := range []string{"received-2", "received-3", "received-3"} {
		require.Empty(t, m.recordUnnamed("b", name))
	}
	require.Equal(t, "received-2", m.recordUnnamed("b", "received-4"))
	require.Empty(t, m.recordUnnamed("a", "received-5"))
	require.Equal(t, "received-1", m.recordUnnamed("a", "received-3"), "a name belongs to its latest sender")
	require.Equal(t, map[string][]string{"a": {"received-5", "received-3"}, "b": {"received-4"}}, m.unnamed)
}
