package module_test

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
)

// BenchmarkFromManifest measures the part of attaching that grows with the number of tensors.
func BenchmarkFromManifest(b *testing.B) {
	dev := openHost(b)
	for _, n := range []int{1, 100, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			sd, err := module.Synthesize(dev, module.Synthetic{Tensors: n, Bytes: 1 << 20})
			require.NoError(b, err)
			defer sd.Close()
			m, storages := sd.Manifest()
			b.ReportAllocs()
			for b.Loop() {
				attached, err := module.FromManifest(m, storages)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				attached.Close()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/tensor")
		})
	}
}

// BenchmarkLoad loads from the page cache; BenchmarkPlainRead is its floor.
func BenchmarkLoad(b *testing.B) {
	for _, c := range []struct {
		name    string
		tensors int
		device  func(driver.Device) driver.Device
	}{
		{"loader/200", 200, func(d driver.Device) driver.Device { return d }},
		{"loader/10000", 10_000, func(d driver.Device) driver.Device { return d }},
		{"windows/200", 200, func(d driver.Device) driver.Device { return &plainDevice{Device: d} }},
		{"windows/10000", 10_000, func(d driver.Device) driver.Device { return &plainDevice{Device: d} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			dev := c.device(openHost(b))
			path := filepath.Join(b.TempDir(), "m")
			require.NoError(b, module.SynthesizeFile(path, module.Synthetic{Tensors: c.tensors, Bytes: benchBytes}))
			b.SetBytes(benchBytes)
			for b.Loop() {
				sd, err := module.Load(b.Context(), dev, path, module.LoadOptions{})
				if err != nil {
					b.Fatal(err)
				}
				sd.Close()
			}
		})
	}
}

const benchBytes = 256 << 20

func BenchmarkDigests(b *testing.B) {
	dev := openHost(b)
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 100, Bytes: 64 << 20})
	require.NoError(b, err)
	defer sd.Close()
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, err := module.Digests(b.Context(), sd, 0); err != nil {
			b.Fatal(err)
		}
	}
}
