package transfer_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// sealed returns a vector of n elements with that value in memory sealed against writing.
func sealed(t *testing.T, dev driver.Device, n int, value float32) *tensor.Tensor {
	t.Helper()
	fixture.HostOnly(t, "no other memory can be sealed")
	source, err := fixture.Filled(dev, n, value)
	require.NoError(t, err)
	defer source.Close()
	raw, err := source.ReadBytes()
	require.NoError(t, err)
	fd, err := unix.MemfdCreate("sealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "sealed")
	defer f.Close()
	_, err = f.Write(raw)
	require.NoError(t, err)
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	mem, err := dev.Import(driver.Handle{Kind: driver.Memfd, Device: dev.Info().UUID, Bytes: int64(len(raw)), File: f}, driver.ImportOptions{})
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	defer s.Close()
	x, err := tensor.New(s, source.Spec())
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

func TestCacheKeyOfSealedMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	a, b := sealed(t, dev, 4, 3), sealed(t, dev, 4, 3)
	part, err := a.Narrow(0, 1, 2)
	require.NoError(t, err)
	for i, step := range []struct {
		x    *tensor.Tensor
		by   float32
		sum  float64
		runs uint64
	}{{a, 0, 12, 1}, {a, 0, 12, 1}, {part, 0, 6, 2}, {b, 0, 12, 3}, {a, 1, 12, 4}, {a, 0, 12, 4}} {
		sum, err := endpoint.Call[float64](ctx, c, "sum", fixture.ScaleIn{X: step.x, By: step.by})
		require.NoError(t, err)
		require.Equal(t, step.sum, sum)
		require.Equal(t, step.runs, o.Ran("sum"), "call %d", i)
	}
}

// Memory of this process that is sealed has an identity for all clients.
func TestCacheKeyAfterSealing(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	x, err := fixture.Filled(dev, 4, 3)
	require.NoError(t, err)
	defer x.Close()
	if dev.Info().Type != driver.CPU {
		var unsupported *driver.UnsupportedError
		require.ErrorAs(t, x.Storage().Seal(), &unsupported)
		return
	}
	require.EqualValues(t, 12, fixture.SumOf(t, c, x))
	proctest.Eventually(t, fixture.WaitLimit, "the owner has let go of it", func() bool { return x.Storage().Seal() == nil })
	require.ErrorIs(t, x.Zero(), driver.ErrReadOnly)
	for _, c := range []*endpoint.Client{c, c, fixture.AnotherClient(t, c, dev)} {
		require.EqualValues(t, 12, fixture.SumOf(t, c, x))
	}
	require.EqualValues(t, 2, o.Ran("sum"), "once before it was sealed, once for all after that")
}

// A publisher publishes memory that it can no longer write.
func TestServerPublishSealedMemory(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "no other memory can be sealed")
	m := fixture.Model{Name: "m", Seed: 7}
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{})
	sd, err := fixture.Synthetic(dev, m)
	require.NoError(t, err)
	for _, storage := range sd.Storages() {
		require.NoError(t, storage.Seal())
	}
	fixture.PublishOn(t, s, "m", sd)
	c := fixture.Client(t, s.Socket())
	c.Acquire(fixture.Acquisition{Name: "m", Key: "m"})
	c.Check("m", m)
}

// A write through a mapping from before the freeze invalidates results computed from the earlier bytes.
func TestCacheKeyOfFrozenMemory(t *testing.T) {
	drivertest.Leaks(t)
	fixture.HostOnly(t, "no other memory can be frozen")
	c, dev, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	x, err := fixture.Filled(dev, 4, 3)
	require.NoError(t, err)
	defer x.Close()
	require.NoError(t, x.Storage().Memory().Freeze())
	for _, value := range []float32{3, 5} {
		list, err := tensor.Data[float32](x)
		require.NoError(t, err)
		for i := range list {
			list[i] = value
		}
		sum, err := endpoint.Call[float64](ctx, c, "sum", fixture.ScaleIn{X: x})
		require.NoError(t, err)
		require.Equal(t, float64(4*value), sum)
	}
}

// Errors contain the requested name once, and no other name: the client may not be permitted to list it.
func TestErrorsOfUnknownNames(t *testing.T) {
	s := fixture.HostileOwner(t)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Acquire(t.Context(), "n", endpoint.AcquireOptions{})
	require.EqualError(t, err, `acquire "n": owner: not found`)
	_, err = c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Version: 9})
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.EqualError(t, err, `acquire version 9 of "m": owner: no such version: the newest is 1`)
	_, err = c.Info(t.Context(), "M")
	require.EqualError(t, err, `info of "M": owner: not found`)
	require.EqualError(t, c.Withdraw(t.Context(), "M"), `withdraw "M": owner: not found`)
	_, err = c.Manifest(t.Context(), "M", 0)
	require.EqualError(t, err, `manifest of "M": owner: not found`)
	err = c.Call(t.Context(), "nothing", 1, nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
}
