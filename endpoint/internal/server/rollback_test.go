package server_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
)

// rolling returns an owner and a client over its socket.
func rolling(t *testing.T, opts endpoint.ServerOptions) (*endpoint.Client, driver.Device) {
	t.Helper()
	opts.Logger = fixture.Discard()
	s := fixture.Serve(t, opts)
	dev := fixture.Device(t)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev), OverSocket: true, Logger: fixture.Discard()})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, dev
}

// publishSeed publishes the model of a seed as "m".
func publishSeed(t *testing.T, c *endpoint.Client, dev driver.Device, seed uint64, opts endpoint.PublishOptions) uint64 {
	t.Helper()
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: seed})
	require.NoError(t, err)
	defer sd.Close()
	version, err := c.Publish(t.Context(), "m", sd, opts)
	require.NoError(t, err)
	return version
}

// memoryFile describes the file of the first storage of a handle.
func memoryFile(t *testing.T, h *endpoint.Handle) os.FileInfo {
	t.Helper()
	out, err := h.StateDict().Storages()[0].Memory().Export()
	require.NoError(t, err)
	defer out.Close()
	info, err := out.File.Stat()
	require.NoError(t, err)
	return info
}

// checkSynthetic compares a state dict with the model of a seed.
func checkSynthetic(t *testing.T, dev driver.Device, sd *module.StateDict, seed uint64) {
	t.Helper()
	want, err := fixture.Synthetic(dev, fixture.Model{Seed: seed})
	require.NoError(t, err)
	defer want.Close()
	wanted, err := module.StateDictDigest(t.Context(), want, 1)
	require.NoError(t, err)
	got, err := module.StateDictDigest(t.Context(), sd, 1)
	require.NoError(t, err)
	require.Equal(t, wanted, got)
}

// The new version has the bytes, the memory and the computed digests of the old one, and a new number.
func TestRollback(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is shared alike")
	drivertest.Leaks(t)
	c, dev := rolling(t, endpoint.ServerOptions{Retain: endpoint.Retention{Versions: 3}})
	ctx := t.Context()
	_, err := c.Rollback(ctx, "m", 0)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	publishSeed(t, c, dev, 1, endpoint.PublishOptions{Digests: true})
	_, err = c.Rollback(ctx, "m", 0)
	require.ErrorIs(t, err, endpoint.ErrNotFound, "no version is superseded")
	_, err = c.Rollback(ctx, "m", 1)
	require.ErrorIs(t, err, endpoint.ErrInvalid, "it is the current one")
	publishSeed(t, c, dev, 2, endpoint.PublishOptions{})
	old, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{Version: 1})
	require.NoError(t, err)
	defer old.Close()

	number, err := c.Rollback(ctx, "m", 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, number)
	again, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer again.Close()
	require.EqualValues(t, 3, again.Version())
	require.True(t, os.SameFile(memoryFile(t, again), memoryFile(t, old)), "the memory is shared")
	checkSynthetic(t, dev, again.StateDict(), 1)
	first, err := c.Digests(ctx, "m", 1)
	require.NoError(t, err)
	third, err := c.Digests(ctx, "m", 3)
	require.NoError(t, err)
	require.Equal(t, first.Whole, third.Whole)

	require.NoError(t, old.Close())
	number, err = c.Rollback(ctx, "m", 0)
	require.NoError(t, err)
	require.EqualValues(t, 4, number)
	last, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer last.Close()
	checkSynthetic(t, dev, last.StateDict(), 2)
	_, err = c.Rollback(ctx, "m", 99)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.NoError(t, c.Withdraw(ctx, "m"))
	checkSynthetic(t, dev, again.StateDict(), 1)
	_, err = c.Rollback(ctx, "m", 1)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
}

// A client that rolls back is charged for the version.
func TestRollbackIsCharged(t *testing.T) {
	t.Parallel()
	c, dev := rolling(t, endpoint.ServerOptions{
		Retain: endpoint.Retention{Versions: 3}, Limits: endpoint.Limits{Publish: endpoint.PublishLimits{Versions: 2}},
	})
	publishSeed(t, c, dev, 1, endpoint.PublishOptions{})
	publishSeed(t, c, dev, 2, endpoint.PublishOptions{})
	_, err := c.Rollback(t.Context(), "m", 0)
	require.ErrorIs(t, err, endpoint.ErrLimit)
}

// A publication sets the retention of its name. Superseded versions are freed when they reach the age.
func TestRetentionOfAPublication(t *testing.T) {
	t.Parallel()
	c, dev := rolling(t, endpoint.ServerOptions{})
	publishSeed(t, c, dev, 1, endpoint.PublishOptions{Retain: &endpoint.Retention{Versions: 5}})
	publishSeed(t, c, dev, 2, endpoint.PublishOptions{})
	versions := func() int {
		info, err := c.Info(t.Context(), "m")
		require.NoError(t, err)
		return len(info.Versions)
	}
	require.Equal(t, 2, versions())
	publishSeed(t, c, dev, 3, endpoint.PublishOptions{Retain: &endpoint.Retention{Age: 30 * time.Millisecond}})
	proctest.Eventually(t, fixture.WaitLimit, "the age of both is over", func() bool { return versions() == 1 })

	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 4})
	require.NoError(t, err)
	defer sd.Close()
	_, err = c.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Retain: &endpoint.Retention{Bytes: -1}})
	require.True(t, errors.Is(err, endpoint.ErrInvalid), "%v", err)
}
