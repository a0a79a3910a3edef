package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// A read-only client invents names. The gateway counts few of them.
func TestInventedNamesAreBounded(t *testing.T) {
	t.Parallel()
	var c clients
	id := Identity{ID: "t", Name: "look", Method: rights.MethodToken, ReadOnly: true}
	env := &Env{}
	for i := range 10_000 {
		for _, right := range []access.Right{access.List, access.Publish} {
			ctx, used := withTarget(rights.WithIdentity(t.Context(), id))
			err := env.Allow(ctx, right, fmt.Sprint(strings.Repeat("x", i%600), right, i))
			require.Equal(t, right == access.Publish, err != nil)
			if err != nil {
				require.Empty(t, used.get(), "no right, no name")
			}
			c.observe(id, used, i%2 == 0, time.Millisecond)
		}
	}
	require.Len(t, c.known, 1)
	total := 0
	for _, one := range c.known {
		require.LessOrEqual(t, len(one.uses), maxTargets+1)
		for name := range one.uses {
			total += len(name)
		}
	}
	require.LessOrEqual(t, total, (maxTargets+1)*maxTargetBytes)
}
