package endpoint

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
)

func TestCallResultOfBorrowedMemory(t *testing.T) {
	require.NoError(t, engine.CheckLasting("memfd", false))
	require.NoError(t, engine.CheckLasting("cuda-fd", false))
	require.NoError(t, engine.CheckLasting("cuda-ipc", true))
	err := engine.CheckLasting("cuda-ipc", false)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "managed")
}

func TestCacheKeyBytesCount(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, Register(r, "length", func(_ context.Context, in registeredIn) (int, error) { return len(in.Name), nil }, CacheKey("{Name}")))
	s, err := newOwner(ServerOptions{Registry: r})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Call(context.Background(), "length", registeredIn{Name: "four"}, nil))
	const value = 1 // byte of a small number
	require.EqualValues(t, value+len("length")+len(`key:"four"`), s.engine.Results.Stats().Bytes)
}
