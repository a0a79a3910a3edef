package endpoint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObjectForgetsEndedTasks(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil }, Managed(), AsTask()))
	s, err := newOwner(ServerOptions{Registry: r, Tasks: TaskOptions{Retain: 3}})
	require.NoError(t, err)
	defer s.Close()
	ctx := context.Background()
	ref, err := CallManaged[int](ctx, s, "object", 1)
	require.NoError(t, err)
	for range 20 {
		again, err := CallManaged[int](ctx, s, "object", 1)
		require.NoError(t, err)
		require.Equal(t, ref.ID(), again.ID())
		require.NoError(t, again.Close())
	}
	require.LessOrEqual(t, s.engine.Objects.OutcomeCount(ref.ID()), 4)
	require.NoError(t, ref.Close())
	require.Zero(t, s.engine.Tasks.Stats().Bytes, "they keep nothing of an object that is gone")
}
