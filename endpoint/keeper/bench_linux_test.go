package keeper_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkAdopt measures the time from the start of a server to its first answer about 4 GiB in 1,000 tensors: a
// client's handle on the model. load is the time to load the same bytes from a file in the page cache, once.
func BenchmarkAdopt(b *testing.B) {
	const tensors, each = 1000, 4 << 20
	dir := b.TempDir()
	store := connect(b, dir)
	dev, err := host.Open()
	require.NoError(b, err)
	defer dev.Close()
	specs := make([]module.NamedSpec, tensors)
	for i := range specs {
		specs[i] = module.NamedSpec{Name: fmt.Sprint("layer.", i, ".weight"), DType: tensor.Uint8, Shape: tensor.Shape{each}}
	}
	sd, err := module.New(dev, specs)
	require.NoError(b, err)
	file := filepath.Join(dir, "m.safetensors")
	require.NoError(b, module.Save(b.Context(), file, sd, module.SaveOptions{}))
	serve := func() *endpoint.Server {
		s, err := newServer(dir+"/s.sock", dev, store)
		require.NoError(b, err)
		go func() { _ = s.Serve(b.Context()) }()
		return s
	}
	s := serve()
	_, err = s.Publish(b.Context(), "m", sd, endpoint.PublishOptions{})
	require.NoError(b, err)
	require.NoError(b, s.Close())
	require.NoError(b, sd.Close())
	start := time.Now()
	loaded, err := module.Load(b.Context(), dev, file, module.LoadOptions{})
	require.NoError(b, err)
	load := time.Since(start)
	require.NoError(b, loaded.Close())
	var adopted time.Duration
	for b.Loop() {
		start := time.Now()
		s := serve()
		c, err := endpoint.Dial(b.Context(), endpoint.ClientOptions{Socket: dir + "/s.sock", Devices: []driver.Device{dev}})
		require.NoError(b, err)
		h, err := c.Acquire(b.Context(), "m", endpoint.AcquireOptions{})
		require.NoError(b, err)
		adopted += time.Since(start)
		require.NoError(b, h.Close())
		require.NoError(b, c.Close())
		require.NoError(b, s.Close())
	}
	b.ReportMetric(load.Seconds()/(adopted.Seconds()/float64(b.N)), "load/adopt")
}

// BenchmarkPublish compares publications with and without a store, in turn. The model has 300 tensors.
func BenchmarkPublish(b *testing.B) {
	dir := b.TempDir()
	dev, err := host.Open()
	require.NoError(b, err)
	defer dev.Close()
	specs := make([]module.NamedSpec, 300)
	for i := range specs {
		specs[i] = module.NamedSpec{Name: fmt.Sprint("layer.", i, ".weight"), DType: tensor.Float32, Shape: tensor.Shape{32, 32}}
	}
	kept, err := newServer(dir+"/kept.sock", dev, connect(b, dir))
	require.NoError(b, err)
	defer kept.Close()
	plain, err := endpoint.NewServer(endpoint.ServerOptions{Socket: dir + "/plain.sock", Devices: []driver.Device{dev}})
	require.NoError(b, err)
	defer plain.Close()
	var took [2]time.Duration
	for b.Loop() {
		for i, s := range []*endpoint.Server{plain, kept} {
			start := time.Now()
			sd, err := module.New(dev, specs) // a publication needs memory
			require.NoError(b, err)
			_, err = s.Publish(b.Context(), "m", sd, endpoint.PublishOptions{})
			require.NoError(b, err)
			took[i] += time.Since(start)
			require.NoError(b, sd.Close())
		}
	}
	b.ReportMetric(took[0].Seconds()*1e6/float64(b.N), "plain-µs")
	b.ReportMetric(took[1].Seconds()*1e6/float64(b.N), "kept-µs")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "kept/plain")
}
