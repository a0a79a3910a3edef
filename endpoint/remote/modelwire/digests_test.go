package modelwire_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// Digests of a received version are not computed again, other digests are computed once, and failures are not kept.
func TestDigests(t *testing.T) {
	t.Parallel()
	data := random(modelwire.ChunkBytes+5, 4)
	m := manifestOf(t, modelwire.BLAKE3, data)
	var d modelwire.Digests
	at := modelwire.Version{ServerID: "s", Name: "m", Version: 1}
	d.Add(at, m)
	nothing := &modelwire.Content{}
	got, err := d.Tensor(t.Context(), modelwire.BLAKE3, at, "w", nothing)
	require.NoError(t, err)
	require.Equal(t, m.Tensors[0].TensorSums, got, "nothing was read")

	content := &modelwire.Content{}
	content.AddBytes(data)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.Tensor(ended, modelwire.SHA256, at, "w", content)
	require.ErrorIs(t, err, context.Canceled)
	for _, source := range []*modelwire.Content{content, nothing} {
		got, err = d.Tensor(t.Context(), modelwire.SHA256, at, "w", source)
		require.NoError(t, err)
		require.Equal(t, manifestOf(t, modelwire.SHA256, data).Tensors[0].Digest, got.Digest)
	}
	at.Version++
	got, err = d.Tensor(t.Context(), modelwire.BLAKE3, at, "w", content)
	require.NoError(t, err)
	require.Equal(t, m.Tensors[0].TensorSums, got, "another version is another entry")
}
