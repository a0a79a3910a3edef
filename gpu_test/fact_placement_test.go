//go:build linux

package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// placingOwner is an owner with models in host memory that makes placements on the GPU, and a client of it.
type placingOwner struct {
	*endpoint.Server
	client *endpoint.Client
	gpu    *cuda.Device
	host   driver.Device
}

// newPlacingOwner returns an owner whose budget has room for the given bytes.
func newPlacingOwner(t *testing.T, budget int64) *placingOwner {
	t.Helper()
	o := &placingOwner{gpu: openDevice(t)}
	dev, err := host.Open()
	o.host = keep(t, dev, err)
	o.Server, err = endpoint.NewServer(endpoint.ServerOptions{
		Socket: filepath.Join(t.TempDir(), "s.sock"), Devices: []driver.Device{o.host, o.gpu}, Logger: slog.New(slog.DiscardHandler),
		Placements: []endpoint.PlacementOptions{{Device: o.gpu, Budget: budget, Keep: time.Hour}},
	})
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() { _ = o.Serve(context.Background()) })
	t.Cleanup(func() { require.NoError(t, o.Close()); served.Wait() })
	o.client, err = endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: o.Socket(), OverSocket: true, Devices: []driver.Device{o.host, o.gpu}})
	keep(t, o.client, err)
	return o
}

// publish publishes a model of 64 tensors in host memory.
func (o *placingOwner) publish(t *testing.T, name string, bytes int64) {
	t.Helper()
	var specs []module.NamedSpec
	for i := range 64 {
		specs = append(specs, module.NamedSpec{Name: fmt.Sprintf("w%d", i), DType: tensor.Uint8, Shape: tensor.Shape{bytes / 64}})
	}
	sd, err := module.New(o.host, specs)
	require.NoError(t, err)
	_, err = o.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, errors.Join(err, sd.Close()))
}

// acquire returns how long attaching a model on the GPU takes.
func (o *placingOwner) acquire(t *testing.T, name string) time.Duration {
	t.Helper()
	start := time.Now()
	h, err := o.client.Acquire(t.Context(), name, endpoint.AcquireOptions{Device: o.gpu})
	took := time.Since(start)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	return took
}

// A placement is compared with a bare copy from pinned memory of the same size, and with attaching one that exists.
func TestFactPlacement(t *testing.T) {
	bytes := int64(4 << 30)
	if onFake() {
		bytes = 16 << 20
	}
	o := newPlacingOwner(t, bytes+(64<<20))
	o.publish(t, "m", bytes)
	first := o.acquire(t, "m")
	var attached []time.Duration
	for range repeats {
		attached = append(attached, o.acquire(t, "m"))
	}
	o.publish(t, "n", bytes) // it replaces m on the GPU
	second := o.acquire(t, "n")

	pinned, err := o.gpu.AllocHost(bytes)
	keep(t, pinned, err)
	o.publish(t, "empty", 64) // the memory of n remains
	mem, err := o.gpu.AllocMemory(bytes)
	keep(t, mem, err)
	start := time.Now()
	require.NoError(t, pinned.CopyTo(t.Context(), mem, bytes, nil))
	bare := time.Since(start)
	rate := func(took time.Duration) string { return fmt.Sprintf("%.2f GB/s", float64(bytes)/1e9/took.Seconds()) }
	fact(t, "placement-copy", "%s of %s with pinning and allocating, %s again; a bare copy from pinned memory %s", rate(first), formatBytes(bytes), rate(second), rate(bare))
	fact(t, "placement-attach", "%s (median of %d), 64 tensors", short(median(attached)), repeats)
}

// Ten models share room for three on the GPU. The processes acquire them in turn.
func TestFactPlacementSwap(t *testing.T) {
	bytes := int64(2 << 30)
	if onFake() {
		bytes = 4 << 20
	}
	o := newPlacingOwner(t, 3*bytes+(bytes/2))
	for i := range 10 {
		o.publish(t, fmt.Sprintf("m%d", i), bytes)
	}
	var swaps []time.Duration
	for round := range 3 {
		for i := range 10 {
			if took := o.acquire(t, fmt.Sprintf("m%d", i)); round > 0 { // the first one pins the memory
				swaps = append(swaps, took)
			}
		}
	}
	info, err := o.ServerInfo(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, info.Placements[0].Placements)
	require.EqualValues(t, 27, info.Placements[0].Evictions)
	fact(t, "placement-swap", "%s (median of %d) for a model of %s, %.2f GB/s", short(median(swaps)), len(swaps), formatBytes(bytes), float64(bytes)/1e9/median(swaps).Seconds())
}
