//go:build linux

package gpu_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/module"
)

// repeats is the number of repetitions of each measurement.
const repeats = 20

// eachSlab runs a measurement for each handle kind and slab size, with a process that allocates the slab. If a size
// does not fit, that is recorded as the answer.
func eachSlab(t *testing.T, name func(kind string, bytes int64) string, run func(t *testing.T, fact string, kind driver.HandleKind, bytes int64)) {
	dev := openDevice(t)
	here := kindsHere(t, dev)
	for _, bytes := range slabs {
		for _, kind := range []driver.HandleKind{driver.CUDAFD, driver.CUDAIPC} {
			short := strings.TrimPrefix(string(kind), "cuda-")
			free, _, err := dev.MemoryInfo()
			require.NoError(t, err)
			t.Run(fmt.Sprintf("%s/%s", formatBytes(bytes), kind), func(t *testing.T) {
				switch {
				case !slices.Contains(here, kind):
					fact(t, name(short, bytes), "%s: the device does not support handles of kind %s", notMeasured, kind)
				case bytes > free-free/8:
					fact(t, name(short, bytes), "%s: only %s free", notMeasured, formatBytes(free))
				default:
					run(t, name(short, bytes), kind, bytes)
				}
			})
		}
	}
}

func TestFactOpenCost(t *testing.T) {
	eachSlab(t, openFact, func(t *testing.T, name string, kind driver.HandleKind, bytes int64) {
		o := open(t, kind)
		o.must(request{Do: "reserve", Key: "m", Bytes: bytes})
		h := o.export("m")
		reader := open(t, kind)
		q := handleRequest("time import", "m", h, false)
		q.Times = 1 + repeats
		r, _ := reader.exchange(q, h.File)
		require.Empty(t, r.Error)
		imports, closes := durations(r.Nanos), durations(r.More)
		fact(t, name, "first %s, then %s (median of %d); closing %s", short(imports[0]), short(median(imports[1:])), repeats, short(median(closes)))
	})
}

func TestFactCallOverhead(t *testing.T) {
	dev := openDevice(t)
	if onFake() {
		require.NoError(t, flag.Set("test.benchtime", "10ms"))
	}
	measure := func(fn func()) string {
		r := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fn()
			}
		})
		return fmt.Sprintf("%d ns and %d allocations", r.NsPerOp(), r.AllocsPerOp())
	}
	var ctx cu.Context
	var free, total uint64
	var calls [3]string
	require.NoError(t, dev.Do(func() error {
		calls[0] = measure(func() { cu.CtxGetCurrent(&ctx) })
		calls[1] = measure(func() { cu.CtxSetCurrent(ctx) })
		calls[2] = measure(func() { cu.MemGetInfo(&free, &total) })
		return nil
	}))
	nothing := func() error { return nil }
	fact(t, "call-overhead", "cuCtxGetCurrent %s, cuCtxSetCurrent %s, cuMemGetInfo %s; Do %s",
		calls[0], calls[1], calls[2], measure(func() { dev.Do(nothing) }))

	f := kernel(t, dev, "empty")
	stream, err := dev.NewStream(cuda.StreamOptions{})
	keep(t, stream, err)
	queue := measure(func() { err = f.Launch(cuda.LaunchConfig{Stream: stream}) })
	require.NoError(t, err)
	typed, err := cuda.KernelOf[struct{}](f)
	require.NoError(t, err)
	queueTyped := measure(func() { err = typed.Launch(cuda.LaunchConfig{Stream: stream}, struct{}{}) })
	require.NoError(t, err)
	require.NoError(t, stream.Synchronize())
	var queueRaw time.Duration
	handle, on := f.Handle(), stream.Handle()
	require.NoError(t, dev.Do(func() error { // not a benchmark, which would call on another thread
		const n = 20_000
		start := time.Now()
		for range n {
			if r := cu.LaunchKernel(handle, 1, 1, 1, 1, 1, 1, 0, on, nil, nil); r != cu.SUCCESS {
				return r.Err()
			}
		}
		queueRaw = time.Since(start) / n
		return nil
	}))
	require.NoError(t, stream.Synchronize())
	wait := measure(func() {
		f.Launch(cuda.LaunchConfig{Stream: stream})
		err = stream.Synchronize()
	})
	require.NoError(t, err)
	fact(t, "launch-overhead", "queue %s; Kernel.Launch %s; cu.LaunchKernel %d ns; queue and wait %s", queue, queueTyped, queueRaw.Nanoseconds(), wait)
}

// rate returns the throughput of fn, which processes the given number of bytes, in GB/s. It is the best of several
// runs.
func rate(tb testing.TB, bytes int64, fn func() error) float64 {
	tb.Helper()
	best := time.Duration(1 << 62)
	for range 5 {
		start := time.Now()
		require.NoError(tb, fn())
		best = min(best, time.Since(start))
	}
	return float64(bytes) / best.Seconds() / 1e9
}

func TestFactLoad(t *testing.T) {
	dev := openDevice(t)
	size := int64(4 << 30)
	if onFake() {
		size = 64 << 20
	}
	if free, _, err := dev.MemoryInfo(); err == nil && free < 2*size {
		size = free / 4 &^ (pieceBytes - 1)
	}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, module.SynthesizeFile(path, module.Synthetic{Tensors: 64, Bytes: size, Seed: 1}))
	f, err := os.Open(path)
	keep(t, f, err)
	m, err := dev.AllocMemory(size)
	keep(t, m, err)

	const staging = 8 << 20
	pinned, err := dev.AllocHost(staging)
	keep(t, pinned, err)
	stream, err := dev.NewStream(cuda.StreamOptions{})
	keep(t, stream, err)
	read := rate(t, size, func() error { // also fills the page cache
		for off := int64(0); off < size; off += staging {
			if _, err := f.ReadAt(pinned.Data()[:min(staging, size-off)], off); err != nil {
				return err
			}
		}
		return nil
	})
	copied := rate(t, size, func() error {
		for off := int64(0); off < size; off += staging {
			if err := stream.CopyToDevice(m, off, pinned, 0, min(staging, size-off)); err != nil {
				return err
			}
		}
		return stream.Synchronize()
	})
	loaded := rate(t, size, func() error { return m.LoadAt(f, 0, 0, size, nil) })
	fact(t, "load", "%.2f GB/s of %s; reading alone, one thread, %.2f; copying alone %.2f; %.2f of the slower",
		loaded, formatBytes(size), read, copied, loaded/min(read, copied))
	require.NoError(t, m.Close())

	whole := rate(t, size, func() error {
		sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
		if err != nil {
			return err
		}
		return sd.Close()
	})
	fact(t, "load-model", "%.2f GB/s with parsing, allocating and freeing; %.2f of the slower of the above", whole, whole/min(read, copied))

	// Check that the measured loads produced the right bytes.
	sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
	keep(t, sd, err)
	first := make([]byte, 1<<16)
	want := make([]byte, len(first))
	info, err := f.Stat()
	require.NoError(t, err)
	mem := sd.Storages()[0].Memory()
	_, err = mem.ReadAt(first, 0)
	require.NoError(t, err)
	_, err = f.ReadAt(want, info.Size()-size)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, first))
}
