package endpoint

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

func TestMemoryThatEndsWithItsOwnerIsNoResult(t *testing.T) {
	require.NoError(t, lasting(nil))
	require.NoError(t, lasting([]wire.Handle{{Kind: "memfd"}, {Kind: "cuda-fd"}}))
	err := lasting([]wire.Handle{{Kind: "memfd"}, {Kind: "cuda-ipc"}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "managed")
}
