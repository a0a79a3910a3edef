package node_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
)

func TestRuntimeInfo(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	base := filepath.Join(filepath.Dir(proctest.SocketPath(t)), "base")
	server, err := nodepkg.Open(ctx, nodepkg.Options{Mode: nodepkg.ModeServer, BasePath: base, DeviceIndex: 2})
	require.NoError(t, err)
	defer server.Close()
	_, err = nodepkg.Share(server, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil }, endpoint.Cached())
	require.NoError(t, err)
	server.Ready()
	require.NoError(t, server.Call(ctx, "double", 1, nil))
	want := nodepkg.RuntimeInfo{
		Mode: nodepkg.ModeServer, BasePath: base, Socket: base + "-2.sock", DeviceIndex: 2, ServerRunning: true, ServerReady: true, Registered: 1,
		CacheEntries: 1,
	}
	check := func(node *nodepkg.Node) {
		t.Helper()
		info, err := node.Info(ctx)
		require.NoError(t, err)
		require.NotNil(t, info.Server)
		require.Equal(t, server.Server().ID(), info.Server.ID)
		require.Equal(t, 2, info.Server.DeviceIndex)
		info.Server = nil
		require.Equal(t, want, info)
	}
	proctest.Eventually(t, fixture.WaitLimit, "it serves", func() bool {
		info, err := server.Info(ctx)
		return err == nil && info.ServerReady
	})
	check(server)
	t.Setenv(envBasePath, base)
	client, err := nodepkg.Open(ctx, nodepkg.Options{Mode: nodepkg.ModeClient, DeviceIndex: 2})
	require.NoError(t, err)
	defer client.Close()
	want.Mode, want.Registered = nodepkg.ModeClient, 0
	check(client)
	local, err := nodepkg.Open(ctx, nodepkg.Options{Mode: nodepkg.ModeLocal, Socket: base})
	require.NoError(t, err)
	defer local.Close()
	info, err := local.Info(ctx)
	require.NoError(t, err)
	require.NotNil(t, info.Server)
	info.Server = nil
	require.Equal(t, nodepkg.RuntimeInfo{Mode: nodepkg.ModeLocal}, info)
}

// A missing owner is a result, not an error.
func TestRuntimeInfoOfAClientWithoutOwner(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	o, socket := fixture.Owner(t)
	node, err := nodepkg.Open(ctx, nodepkg.Options{Mode: nodepkg.ModeClient, DeviceIndex: 1, Socket: socket})
	require.NoError(t, err)
	defer node.Close()
	info, err := node.Info(ctx)
	require.NoError(t, err)
	require.True(t, info.ServerRunning)
	require.Equal(t, o.PID(), info.Server.PID)
	o.Kill()
	for range 2 {
		info, err = node.Info(ctx)
		require.NoError(t, err)
		require.Equal(t, nodepkg.RuntimeInfo{Mode: nodepkg.ModeClient, Socket: socket, DeviceIndex: 1}, info)
	}
	late, cancel := context.WithCancel(ctx)
	cancel()
	_, err = node.Info(late)
	require.ErrorIs(t, err, context.Canceled, "who does not wait learns nothing")
}
