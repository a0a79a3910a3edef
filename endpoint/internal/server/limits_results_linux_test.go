package server_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// boundedMemory returns its bytes to the device when it is closed.
type boundedMemory struct {
	driver.Mapped
	dev  *smallDevice
	once sync.Once
}

func (m *boundedMemory) Device() driver.Device { return m.dev }

func (m *boundedMemory) Close() error {
	m.once.Do(func() {
		m.dev.mu.Lock()
		defer m.dev.mu.Unlock()
		m.dev.left += m.Bytes()
	})
	return m.Mapped.Close()
}

func (d *smallDevice) OnRefused(f func(int64) bool) func() { return d.Reclaim.OnRefused(f) }

func (d *smallDevice) take(n int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > d.left {
		return false
	}
	d.left -= n
	return true
}

func (d *smallDevice) Alloc(n int64) (driver.Memory, error) {
	for !d.take(n) {
		if !d.RetryAfterReclaim(n, driver.ErrOutOfMemory) {
			return nil, driver.ErrOutOfMemory
		}
	}
	mem, err := d.Device.Alloc(n)
	if err != nil {
		return nil, err
	}
	return &boundedMemory{Mapped: mem.(driver.Mapped), dev: d}, nil
}

// A refused allocation is retried without the unused cached results.
func TestLimitsResultsEvicted(t *testing.T) {
	t.Parallel()
	fixture.HostOnly(t, "has a device of its own")
	real, err := host.Open()
	require.NoError(t, err)
	defer real.Close()
	const size = 1 << 20
	dev := &smallDevice{Device: real, left: 4*size + size/2}
	r := endpoint.NewRegistry(endpoint.Cached())
	require.NoError(t, endpoint.Register(r, "zeros", func(_ context.Context, n int) (*tensor.Tensor, error) {
		return tensor.Zeros(dev, tensor.Uint8, tensor.Shape{size})
	}))
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Registry: r, Logger: fixture.Discard(), Devices: []driver.Device{dev}})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	ctx := context.Background()
	var held *tensor.Tensor
	for i := range 12 {
		x, err := endpoint.Call[*tensor.Tensor](ctx, s, "zeros", i)
		require.NoError(t, err, i)
		if i == 0 {
			held = x
			continue
		}
		require.NoError(t, x.Close())
	}
	require.LessOrEqual(t, fixture.LimitUse(t, s, "result_bytes").Used, int64(5*size))
	require.NoError(t, held.Close())
}

// The default limit is a quarter of the smallest memory of the devices, and the server reports it.
func TestLimitsCachedResults(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	memory, of := dev.MemoryLimit()
	budget, why := memory/4, "a quarter of "+of
	require.Positive(t, budget)
	require.LessOrEqual(t, budget, dev.Info().TotalBytes/4)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
	for _, name := range []string{"result_bytes", "task_result_bytes"} {
		use := fixture.LimitUse(t, s, name)
		require.Equal(t, budget, use.All)
		require.Equal(t, why, use.Reason)
	}

	set := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Results: endpoint.ResultOptions{Bytes: 5}, Tasks: endpoint.TaskOptions{Bytes: -1}})
	require.EqualValues(t, 5, fixture.LimitUse(t, set, "result_bytes").All)
	require.Equal(t, "the owner asked for it", fixture.LimitUse(t, set, "result_bytes").Reason)
	require.Zero(t, fixture.LimitUse(t, set, "task_result_bytes").All)
}
