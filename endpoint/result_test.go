package endpoint

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
)

func TestCallResultOfBorrowedMemory(t *testing.T) {
	t.Parallel()
	require.NoError(t, engine.CheckLasting("memfd", false))
	require.NoError(t, engine.CheckLasting("cuda-fd", false))
	require.NoError(t, engine.CheckLasting("cuda-ipc", true))
	err := engine.CheckLasting("cuda-ipc", false)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "managed")
}

func TestCacheKeyBytesCount(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	require.NoError(t, Register(r, "length", func(_ context.Context, in registeredIn) (int, error) { return len(in.Name), nil }, CacheKey("{Name}")))
	s, err := newServer(ServerOptions{Registry: r})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Call(context.Background(), "length", registeredIn{Name: "four"}, nil))
	const value = 1 // byte of a small number
	require.EqualValues(t, value+len("length")+len(`key:"four"`), s.core.Engine.Results.Stats().Bytes)
}

func TestObjectForgetsEndedTasks(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	require.NoError(t, Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil }, Managed(), AsTask()))
	s, err := newServer(ServerOptions{Registry: r, Tasks: TaskOptions{Retain: 3}})
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
	require.LessOrEqual(t, s.core.Engine.Objects.OutcomeCount(ref.ID()), 4)
	require.NoError(t, ref.Close())
	require.Zero(t, s.core.Engine.Tasks.Stats().Bytes, "they keep nothing of an object that is gone")
}
