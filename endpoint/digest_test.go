package endpoint_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
)

// The owner passes digests on without checking them, and drops them unless every tensor has one.
func TestClientAcquirePublishedDigests(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	own := module.NewStateDict()
	for _, name := range []string{"a", "b"} {
		x, err := fixture.Filled(dev, 6, 1)
		require.NoError(t, err)
		require.NoError(t, own.Set(name, x))
	}
	defer own.Close()
	m, storages := own.Manifest()
	m.Tensors[0].Digest, m.Tensors[1].Digest = &module.Digest{1, 2, 3}, &module.Digest{4}
	claimed, err := module.FromManifest(m, storages)
	require.NoError(t, err)
	defer claimed.Close()
	_, err = c.Publish(ctx, "claimed", claimed, endpoint.PublishOptions{})
	require.NoError(t, err)
	m.Tensors[1].Digest = nil
	part, err := module.FromManifest(m, storages)
	require.NoError(t, err)
	defer part.Close()
	_, err = c.Publish(ctx, "part", part, endpoint.PublishOptions{})
	require.NoError(t, err)

	reader := fixture.AnotherClient(t, c, dev)
	h, err := reader.Acquire(ctx, "claimed", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	got, ok := h.StateDict().Digest("a")
	require.True(t, ok)
	require.Equal(t, module.Digest{1, 2, 3}, got)
	got, ok = h.StateDict().Digest("b")
	require.True(t, ok)
	require.Equal(t, module.Digest{4}, got)
	h, err = reader.Acquire(ctx, "part", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	_, ok = h.StateDict().Digest("a")
	require.False(t, ok)
}
