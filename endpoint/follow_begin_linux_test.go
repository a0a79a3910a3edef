package endpoint_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// Without waiting, a worker starts before its owner. What waiting cannot resolve ends the follower with the reason.
func TestFollowBeforeTheOwner(t *testing.T) {
	drivertest.Leaks(t)
	use := func(f *endpoint.Follower[endpoint.ModelVersion]) error {
		return f.Use(func(endpoint.ModelVersion) error { return nil })
	}
	socket := proctest.SocketPath(t)
	c, err := endpoint.NewClient(endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{fixture.Device(t)}, Logger: fixture.Discard()})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Follow(t.Context(), "m\n", endpoint.FollowOptions{NoWait: true})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
	never, err := c.Follow(t.Context(), "never", endpoint.FollowOptions{NoWait: true})
	require.NoError(t, err)
	require.NoError(t, never.Close())
	require.ErrorIs(t, use(never), endpoint.ErrClosed)
	f, err := c.Follow(t.Context(), "m", endpoint.FollowOptions{NoWait: true})
	require.NoError(t, err)
	require.ErrorIs(t, use(f), endpoint.ErrNotFound)
	proctest.Eventually(t, fixture.WaitLimit, "there is no owner", func() bool { return f.Status().OwnerLost })

	o := fixture.Start(t)
	o.Serve(socket)
	proctest.Eventually(t, fixture.WaitLimit, "there is an owner", func() bool { return !f.Status().OwnerLost })
	require.ErrorIs(t, use(f), endpoint.ErrNotFound)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	proctest.Eventually(t, fixture.WaitLimit, "version 1 is in use", func() bool { return use(f) == nil })
	require.NoError(t, f.Close())

	late, err := endpoint.NewClient(endpoint.ClientOptions{Socket: proctest.SocketPath(t), Devices: []driver.Device{fixture.Device(t)}, Logger: fixture.Discard()})
	require.NoError(t, err)
	lost, err := late.Follow(t.Context(), "m", endpoint.FollowOptions{NoWait: true})
	require.NoError(t, err)
	changed := lost.Changed()
	require.NoError(t, late.Close())
	<-changed
	proctest.Eventually(t, fixture.WaitLimit, "the follower has ended", func() bool { return errors.Is(use(lost), endpoint.ErrClosed) })
	require.NoError(t, lost.Close())
}
