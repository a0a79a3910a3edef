package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// Clients that hold one thing each stay connected; one that holds nothing is disconnected.
func TestSessionIdleTimeout(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "object", func(context.Context, struct{}) (int, error) { return 7, nil }, endpoint.Managed()))
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ struct{}) (int, error) { <-ctx.Done(); return 0, ctx.Err() }))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard(), Limits: endpoint.Limits{Idle: 400 * time.Millisecond}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fixture.PublishOn(t, s, "m", scattered(t, dev, 1))
	dial := func() *endpoint.Client {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{dev}})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	count := func() int {
		info, err := s.ServerInfo(ctx)
		require.NoError(t, err)
		return int(info.Stats.Clients)
	}
	h, err := dial().Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	_, err = dial().Watch(ctx, "m")
	require.NoError(t, err)
	ref, err := endpoint.CallManaged[int](ctx, dial(), "object", nil)
	require.NoError(t, err)
	waited, waits := make(chan error, 1), dial()
	go func() { waited <- waits.Call(ctx, "wait", nil, nil) }()

	idle := dial()
	proctest.Eventually(t, fixture.WaitLimit, "the one that holds nothing is let go", func() bool { return count() == 4 })
	proctest.Eventually(t, fixture.WaitLimit, "it dials again when it is used and has heard of that", func() bool {
		_, err := idle.Ping(context.Background())
		return err == nil
	})
	proctest.Eventually(t, fixture.WaitLimit, "it is let go again", func() bool { return count() == 4 })
	require.NoError(t, h.Close())
	require.NoError(t, ref.Close())
	cancel()
	require.Error(t, <-waited)
	ctx = context.Background()
	proctest.Eventually(t, fixture.WaitLimit, "only the watch keeps its client", func() bool { return count() == 1 })
}
