package cuda_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// On the stand-in, these benchmarks measure this package and host copies, not a GPU.

func BenchmarkDo(b *testing.B) {
	d := openDevice(b, 0)
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// Event.Done is one crossing: it sets the context, queries the event and restores the previous context. "raw" makes the
// same three calls of the stand-in without the checks of this package.
func BenchmarkEventDone(b *testing.B) {
	d := openDevice(b, 0)
	e, err := d.NewEvent(cuda.EventOptions{})
	require.NoError(b, err)
	defer e.Close()
	b.Run("typed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if done, err := e.Done(); !done || err != nil {
				b.Fatal(done, err)
			}
		}
	})
	b.Run("raw", func(b *testing.B) {
		c, h := d.Context(), e.Handle()
		b.ReportAllocs()
		for b.Loop() {
			if r := c.EventQuery(h); r != cu.SUCCESS {
				b.Fatal(r)
			}
		}
	})
}

func BenchmarkImport(b *testing.B) {
	d := openDevice(b, 0)
	for _, size := range []int64{2 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			m := alloc(b, d, size)
			h, err := m.Export()
			require.NoError(b, err)
			defer h.Close()
			for b.Loop() {
				in, err := d.Import(h, driver.ImportOptions{})
				if err != nil {
					b.Fatal(err)
				}
				in.Close()
			}
		})
	}
}

func BenchmarkLaunch(b *testing.B) {
	d := openDevice(b, 0)
	f := function(b, loadKernels(b, d), "saxpy")
	s := newStream(b, d)
	x, y := alloc(b, d, 4096), alloc(b, d, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if err := f.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 1}, Stream: s}, float32(1), x, y, uint32(0)); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Synchronize())
}

// BenchmarkLoad compares loading a file with reading it, and with copying the same number of bytes from one pinned
// buffer.
func BenchmarkLoad(b *testing.B) {
	const size = 128 << 20
	d := openDevice(b, 0)
	path := filepath.Join(b.TempDir(), "file")
	require.NoError(b, os.WriteFile(path, bytes.Repeat([]byte{1, 2, 3, 4}, size/4), 0o600))
	f, err := os.Open(path)
	require.NoError(b, err)
	defer f.Close()
	m := alloc(b, d, size)
	b.Run("LoadAt", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			require.NoError(b, m.LoadAt(f, 0, 0, size, nil))
		}
	})
	b.Run("ReadOnly", func(b *testing.B) {
		buf := make([]byte, 8<<20)
		b.SetBytes(size)
		for b.Loop() {
			for off := int64(0); off < size; off += int64(len(buf)) {
				_, err := f.ReadAt(buf, off)
				require.NoError(b, err)
			}
		}
	})
	b.Run("CopyOnly", func(b *testing.B) {
		h, s := host(b, d, 8<<20), newStream(b, d)
		b.SetBytes(size)
		for b.Loop() {
			for off := int64(0); off < size; off += 8 << 20 {
				require.NoError(b, s.CopyToDevice(m, off, h, 0, 8<<20))
				require.NoError(b, s.Synchronize())
			}
		}
	})
}

func BenchmarkCall(b *testing.B) {
	d := openDevice(b, 0)
	require.NoError(b, d.Do(func() error {
		var free, total uint64
		b.ReportAllocs()
		for b.Loop() {
			cu.MemGetInfo(&free, &total)
		}
		return nil
	}))
}
