package node_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// An owner ends between the request and the answer, and does not return.
func TestNodeInfoAsksOnce(t *testing.T) {
	drivertest.Leaks(t)
	owner := fixture.NewFakeOwner(t)
	opened := make(chan *nodepkg.Node, 1)
	go func() {
		node, err := nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeClient, Socket: owner.Socket, Logger: fixture.Discard()})
		if err != nil {
			t.Error(err)
		}
		opened <- node
	}()
	end := owner.Greet("fake")
	node := <-opened
	require.NotNil(t, node)
	infos := make(chan nodepkg.RuntimeInfo, 1)
	go func() {
		info, err := node.Info(context.Background())
		if err != nil {
			t.Error(err)
		}
		infos <- info
	}()
	end.NextRequest(message.OpServerInfo, nil)
	require.NoError(t, owner.Listener.Close())
	require.NoError(t, end.Close())
	info := <-infos
	require.Equal(t, nodepkg.ModeClient, info.Mode)
	require.False(t, info.ServerRunning)
	require.Nil(t, info.Server)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := node.Info(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, node.Close())
}
