package keeper_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkAdopt measures the time from the start of a server to its first answer about 4 GiB in 1,000 tensors, or 1 GiB
// in a directory: a client's handle on the model. load is the time to load the same bytes from a file in the page cache,
// once.
func BenchmarkAdopt(b *testing.B) {
	b.Run("keeper", func(b *testing.B) { benchmarkAdopt(b, connect(b, b.TempDir()), 1000) })
	b.Run("directory", func(b *testing.B) {
		store, _ := directoryOf(b)
		benchmarkAdopt(b, store, 250)
	})
}

func benchmarkAdopt(b *testing.B, store endpoint.Store, tensors int) {
	const each = 4 << 20
	dir := b.TempDir()
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

// BenchmarkPublish compares publications with and without a store, in turn. The model has 300 tensors. It reports medians,
// because other processes of a loaded machine interrupt some publications.
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
	var took [2][]time.Duration
	servers := [2]*endpoint.Server{plain, kept}
	for n := 0; b.Loop(); n++ {
		for i := range servers {
			i = (i + n) % 2 // each is the first one in turn
			s := servers[i]
			start := time.Now()
			sd, err := module.New(dev, specs) // a publication needs memory
			require.NoError(b, err)
			_, err = s.Publish(b.Context(), "m", sd, endpoint.PublishOptions{})
			require.NoError(b, err)
			took[i] = append(took[i], time.Since(start))
			require.NoError(b, sd.Close())
		}
	}
	var median [2]float64
	for i := range took {
		slices.Sort(took[i])
		median[i] = took[i][len(took[i])/2].Seconds()
	}
	b.ReportMetric(median[0]*1e6, "plain-µs")
	b.ReportMetric(median[1]*1e6, "kept-µs")
	b.ReportMetric(median[1]/median[0], "kept/plain")
}

// BenchmarkRestart measures the time from SIGKILL of an owner to the first answer of the next one to a connected client. One
// owner has 4 GiB in 1,000 tensors, the other none. Each owner is killed in turn. gap is the median, longest the maximum of
// the first, empty the median of the second.
func BenchmarkRestart(b *testing.B) {
	const tensors, each = 1000, 4 << 20
	var owners [2]*endpointtest.Process
	var users [2]user
	for i := range owners {
		owners[i] = start(b)
		users[i] = newUser(b, owners[i])
	}
	specs := make([]module.NamedSpec, tensors)
	for i := range specs {
		specs[i] = module.NamedSpec{Name: fmt.Sprint("layer.", i, ".weight"), DType: tensor.Uint8, Shape: tensor.Shape{each}}
	}
	sd, err := module.New(users[0].dev, specs)
	require.NoError(b, err)
	_, err = users[0].Publish(b.Context(), "m", sd, endpoint.PublishOptions{})
	require.NoError(b, err)
	require.NoError(b, sd.Close())
	var gaps [2][]time.Duration
	for b.Loop() {
		for i, p := range owners {
			users[i].Client.Close()
			users[i] = newUser(b, p) // clients pause longer and longer while connections end within a second
			before := users[i].ServerID()
			begin := time.Now()
			p.Kill()
			p.Restart()
			list, err := users[i].List(b.Context())
			for ; err != nil || users[i].ServerID() == before; list, err = users[i].List(b.Context()) {
				require.Less(b, time.Since(begin), time.Minute, "%v", err)
				time.Sleep(time.Millisecond)
			}
			gaps[i] = append(gaps[i], time.Since(begin))
			require.Len(b, list, 1-i)
		}
	}
	for i := range gaps {
		slices.Sort(gaps[i])
	}
	n := len(gaps[0])
	b.ReportMetric(gaps[0][n/2].Seconds()*1e3, "gap-ms")
	b.ReportMetric(gaps[0][n-1].Seconds()*1e3, "longest-ms")
	b.ReportMetric(gaps[1][n/2].Seconds()*1e3, "empty-ms")
}
