package endpoint

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryThatEndsWithItsOwnerIsNoResult(t *testing.T) {
	require.NoError(t, lasting("memfd", false))
	require.NoError(t, lasting("cuda-fd", false))
	require.NoError(t, lasting("cuda-ipc", true))
	err := lasting("cuda-ipc", false)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "managed")
}
