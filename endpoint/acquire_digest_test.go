package endpoint_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// The digest of a model is known from the seed from which another process created it.
func TestClientAcquireDigest(t *testing.T) {
	one, socket := owner(t)
	one.publish(model{Name: "m", Seed: 7})
	dev := testDevice(t)
	sd, err := synthetic(dev, model{Seed: 7})
	require.NoError(t, err)
	defer sd.Close()
	digest, err := module.StateDictDigest(t.Context(), sd, 0)
	require.NoError(t, err)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: driversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	h, err := c.AcquireWith(t.Context(), "m", endpoint.AcquireOptions{Digest: digest})
	require.NoError(t, err)
	require.NoError(t, h.Close())

	one.publish(model{Name: "m", Seed: 8})
	_, err = c.AcquireWith(t.Context(), "m", endpoint.AcquireOptions{Digest: digest})
	require.ErrorIs(t, err, module.ErrDigest)
	require.ErrorContains(t, err, "version 2")
	require.Zero(t, c.Stats().Handles, "what was refused is given back")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.AcquireWith(ctx, "m", endpoint.AcquireOptions{Digest: digest})
	require.ErrorIs(t, err, context.Canceled)
}
