package engine_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
)

// dialedTo connects a client to a server of this process through its socket.
func dialedTo(t *testing.T, s *endpoint.Server, devices ...driver.Device) *endpoint.Client {
	t.Helper()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), Devices: devices, OverSocket: true})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Errors after Close name what was closed. The text of os.ErrClosed is about files.
func TestClosedTexts(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{})
	c := dialedTo(t, s, dev)
	ctx := context.Background()
	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x))
	fixture.PublishOn(t, s, "m", sd)

	f, err := c.Follow(ctx, "m", endpoint.FollowOptions{})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = f.Current()
	require.ErrorIs(t, err, endpoint.ErrClosed)
	require.EqualError(t, err, `the follower of "m" is closed`)

	w, err := c.Watch(ctx)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for _, err := range w.Events(ctx) {
		require.ErrorIs(t, err, endpoint.ErrClosed)
		require.ErrorContains(t, err, "the watcher is closed")
	}

	require.NoError(t, c.Close())
	_, acquired := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	_, pinged := c.Ping(ctx)
	for _, err := range []error{acquired, pinged, c.Call(ctx, "double", nil, nil)} {
		require.ErrorIs(t, err, endpoint.ErrClosed)
		require.ErrorIs(t, err, os.ErrClosed)
		require.ErrorContains(t, err, "the client of "+s.Socket()+" is closed")
		require.NotContains(t, err.Error(), "file")
	}
}

func TestAcquireBadName(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	for _, wait := range []bool{false, true} {
		_, err := c.Acquire(context.Background(), "", endpoint.AcquireOptions{Wait: wait})
		require.ErrorIs(t, err, endpoint.ErrInvalid)
		require.NotErrorIs(t, err, endpoint.ErrNotFound)
		require.ErrorContains(t, err, "it is empty")
	}
}

// The error of a cancelled task matches the standard library's sentinel in the owner and in clients.
func TestCancelledTaskMatchesContextCanceled(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ struct{}) (int, error) {
		<-ctx.Done()
		return 0, nil
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, caller := range []endpoint.Caller{s, dialedTo(t, s)} {
		info, err := caller.Submit(ctx, "wait", struct{}{})
		require.NoError(t, err)
		cancelled, err := info.Cancel(ctx)
		require.NoError(t, err)
		require.True(t, cancelled)
		ended, err := info.Wait(ctx)
		require.NoError(t, err)
		require.ErrorIs(t, ended.Err(), task.ErrCancelled)
		require.ErrorIs(t, ended.Err(), context.Canceled)
		require.ErrorIs(t, info.Result(ctx, nil), context.Canceled)
	}
}
