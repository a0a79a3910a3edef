package models_test

import (
	"bytes"
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
)

// Readers never see bytes of another version while the gateway reuses memory for uploads of the same size. One reader
// keeps the first version; another opens and closes each version.
func TestUploadReusesMemory(t *testing.T) {
	ctx := context.Background()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: owner.Socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()

	const path = "/v1/models/again/model.safetensors"
	var first *endpoint.Handle
	var digests []module.Digest
	for seed := range uint64(8) {
		sd, err := module.Synthesize(dev, module.Synthetic{Seed: seed, Tensors: 3, Bytes: 1 << 20})
		require.NoError(t, err)
		file, err := module.Encode(ctx, sd, module.SaveOptions{})
		require.NoError(t, err)
		digest, err := module.StateDictDigest(ctx, sd, 0)
		require.NoError(t, err)
		require.NoError(t, sd.Close())
		digests = append(digests, digest)

		resp, text := gw.Do(t, http.MethodPut, path, bytes.NewReader(file))
		require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", text)
		_, sent := gw.Get(t, path)
		require.True(t, bytes.Equal(file, sent), "version %d is sent as it came", seed+1)
		h, err := c.Acquire(ctx, "again", endpoint.AcquireOptions{Digest: digest})
		require.NoError(t, err)
		if first == nil {
			first = h
			defer h.Close()
			continue
		}
		require.NoError(t, module.Verify(ctx, first.StateDict(), digests[0]), "the first version stays what it was")
		require.NoError(t, h.Close())
	}
	info, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Less(t, info.Stats.Versions, uint64(8), "versions without readers go")
}
