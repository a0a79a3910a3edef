package transfer

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// encodedManifest returns a manifest of one tensor with that number of elements in a storage of 64 bytes.
func encodedManifest(t *testing.T, name string, elements int64) []byte {
	t.Helper()
	m, err := message.NewManifest([]message.Tensor{{Name: name, DType: 12, Shape: []int64{elements}}}, []message.Storage{{Bytes: 64, Type: 1}}, nil)
	require.NoError(t, err)
	encoded, err := message.Marshal(m)
	require.NoError(t, err)
	return encoded
}

func TestManifestsCompareAllBytes(t *testing.T) {
	t.Parallel()
	var known Manifests
	encoded := encodedManifest(t, "w", 1)
	first, err := known.Prepare(encoded)
	require.NoError(t, err)
	again, err := known.Prepare(bytes.Clone(encoded))
	require.NoError(t, err)
	require.Same(t, first, again)
	clear(encoded) // Prepare borrowed it
	again, err = known.Prepare(encodedManifest(t, "w", 1))
	require.NoError(t, err)
	require.Same(t, first, again)
	other, err := known.Prepare(encodedManifest(t, "v", 1))
	require.NoError(t, err)
	require.NotSame(t, first, other)
	for range 2 { // a refused manifest is not kept
		_, err = known.Prepare(encodedManifest(t, "w", 1<<40))
		require.ErrorIs(t, err, status.ErrInvalid)
		_, err = known.Prepare(nil)
		require.ErrorIs(t, err, message.ErrEncoding)
		_, err = known.Prepare([]byte{0xff})
		require.ErrorIs(t, err, message.ErrEncoding)
	}
	require.Len(t, known.known, 2)
}

func TestManifestsLimits(t *testing.T) {
	t.Parallel()
	var known Manifests
	var all sync.WaitGroup
	for i := range 4 {
		var encoded [][]byte
		for j := range 3 * maxManifests {
			encoded = append(encoded, encodedManifest(t, fmt.Sprint(i, j), 1))
		}
		all.Go(func() {
			for _, e := range encoded {
				_, err := known.Prepare(e)
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	require.Len(t, known.known, maxManifests)
	sum := 0
	for _, m := range known.known {
		sum += len(m.encoded)
	}
	require.Equal(t, sum, known.bytes)
	name := string(bytes.Repeat([]byte("n"), 200))
	for i := range 12 {
		tensors := make([]message.Tensor, 2000)
		for j := range tensors {
			tensors[j] = message.Tensor{Name: fmt.Sprint(name, i, "-", j), DType: 12, Shape: []int64{1}}
		}
		m, err := message.NewManifest(tensors, []message.Storage{{Bytes: 64, Type: 1}}, nil)
		require.NoError(t, err)
		encoded, err := message.Marshal(m)
		require.NoError(t, err)
		_, err = known.Prepare(encoded)
		require.NoError(t, err)
		require.LessOrEqual(t, known.bytes, maxManifestBytes)
	}
	require.NotEmpty(t, known.known)
}
