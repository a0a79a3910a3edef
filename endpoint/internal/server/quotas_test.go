package server_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// scattered returns a state dict of n storages of one page each.
func scattered(t testing.TB, dev driver.Device, n int) *module.StateDict {
	t.Helper()
	sd := module.NewStateDict()
	for i := range n {
		x, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{float32(i)})
		require.NoError(t, err)
		require.NoError(t, sd.Set(fmt.Sprint(i), x))
	}
	return sd
}

// publisher returns a client that publishes n storages of one page each under a name.
func publisher(t testing.TB, s *endpoint.Server, dev driver.Device) (*endpoint.Client, func(name string, n int) error) {
	t.Helper()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, func(name string, n int) error {
		sd := scattered(t, dev, n)
		defer sd.Close()
		_, err := c.Publish(context.Background(), name, sd, endpoint.PublishOptions{})
		return err
	}
}

func TestLimitsPublish(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	const page = 4096
	for _, c := range []struct {
		what   string
		limits endpoint.PublishLimits
		each   int // storages
		fit    int // versions
	}{
		{"versions", endpoint.PublishLimits{Versions: 3}, 1, 3},
		{"storages", endpoint.PublishLimits{Storages: 7}, 2, 3},
		{"bytes", endpoint.PublishLimits{Bytes: 5 * page}, 2, 2},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Limits: endpoint.Limits{Publish: c.limits}})
			ctx := context.Background()
			one, publish := publisher(t, s, dev)
			for i := range c.fit {
				require.NoError(t, publish(fmt.Sprint(i), c.each))
			}
			before := drivertest.TakeSnapshot()
			for range 3 {
				require.ErrorIs(t, publish("more", c.each), endpoint.ErrLimit)
			}
			require.Empty(t, before.WaitNone(fixture.WaitLimit), "what was refused is not kept")
			require.NoError(t, one.Withdraw(ctx, "0"))
			require.NoError(t, publish("more", c.each), "there is room again")
			require.ErrorIs(t, publish("yet more", c.each), endpoint.ErrLimit)

			h, err := one.Acquire(ctx, "more", endpoint.AcquireOptions{})
			require.NoError(t, err)
			require.NoError(t, one.Withdraw(ctx, "more"))
			require.ErrorIs(t, publish("yet more", c.each), endpoint.ErrLimit, "what somebody reads counts")
			require.NoError(t, h.Close())
			require.NoError(t, publish("yet more", c.each))

			_, other := publisher(t, s, dev)
			require.NoError(t, other("others", c.each), "another client has limits of its own")
			fixture.PublishOn(t, s, "own", scattered(t, dev, 10))
		})
	}
}

func TestLimitsPublishTotal(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Limits: endpoint.Limits{PublishTotal: endpoint.PublishLimits{Versions: 4, Storages: 6}}})
	for i := range 3 {
		c, publish := publisher(t, s, dev)
		require.NoError(t, publish(fmt.Sprint(i), 1))
		require.NoError(t, c.Close(), "it goes, and what it published stays")
	}
	last, publish := publisher(t, s, dev)
	require.ErrorIs(t, publish("last", 4), endpoint.ErrLimit)
	require.NoError(t, publish("last", 3))
	require.ErrorIs(t, publish("one more", 1), endpoint.ErrLimit)
	require.NoError(t, last.Withdraw(context.Background(), "1"))
	require.ErrorIs(t, publish("two more", 2), endpoint.ErrLimit)
	require.NoError(t, publish("one more", 1))
	fixture.PublishOn(t, s, "own", scattered(t, dev, 10))
}

// A version that no frame can carry is refused; otherwise every reader would be refused after taking a lease.
func TestServerPublishTooLarge(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Limits: endpoint.Limits{Wire: wire.Limits{Files: 3, Frame: 4096}}})
	ctx := context.Background()
	first, _ := publisher(t, s, dev) // answered by a server whose goroutines all run
	require.NoError(t, first.Close())
	proctest.Eventually(t, fixture.WaitLimit, "nobody is connected", func() bool {
		info, err := s.ServerInfo(ctx)
		return err == nil && len(info.Sessions) == 1
	})
	before := drivertest.TakeSnapshot()
	apart := scattered(t, dev, 4)
	_, err := s.Publish(ctx, "storages", apart, endpoint.PublishOptions{})
	require.ErrorIs(t, err, wire.ErrTooLarge)
	require.NoError(t, apart.Close())
	many, err := module.Synthesize(dev, module.Synthetic{Tensors: 500, Bytes: 1})
	require.NoError(t, err)
	_, err = s.Publish(ctx, "tensors", many, endpoint.PublishOptions{})
	require.ErrorIs(t, err, wire.ErrTooLarge)
	require.NoError(t, many.Close())
	require.Empty(t, before.WaitNone(fixture.WaitLimit))
	require.Empty(t, fixture.ListOf(s))

	fixture.PublishOn(t, s, "fits", scattered(t, dev, 3))
	c, _ := publisher(t, s, dev)
	h, err := c.Acquire(ctx, "fits", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())
}
