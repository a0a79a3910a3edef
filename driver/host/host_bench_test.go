//go:build linux

package host

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

const benchFileBytes = 1 << 30

// touched keeps the compiler from dropping the reads.
var touched byte

// benchFile returns a file of 1 GiB in the page cache.
func benchFile(b *testing.B) *os.File {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "weights"))
	require.NoError(b, err)
	b.Cleanup(func() { f.Close() })
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7)
	}
	for range benchFileBytes / len(block) {
		_, err := f.Write(block)
		require.NoError(b, err)
	}
	require.NoError(b, f.Sync())
	return f
}

// BenchmarkLoad compares LoadAt, with and without the preceding Alloc, with its floor: a plain read of the same file
// into fresh anonymous memory. "mapped" also touches every page of the result through the mapping.
func BenchmarkLoad(b *testing.B) {
	f := benchFile(b)
	dev, err := Open()
	require.NoError(b, err)
	load := func(after func(driver.Memory)) func(b *testing.B) {
		return func(b *testing.B) {
			b.SetBytes(benchFileBytes)
			for range b.N {
				m, err := dev.Alloc(benchFileBytes)
				require.NoError(b, err)
				require.NoError(b, m.(driver.Loader).LoadAt(f, 0, 0, benchFileBytes, nil))
				after(m)
				require.NoError(b, m.Close())
			}
		}
	}
	b.Run("plain-read", func(b *testing.B) {
		b.SetBytes(benchFileBytes)
		for range b.N {
			p, err := unix.Mmap(-1, 0, benchFileBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			require.NoError(b, err)
			_, err = io.ReadFull(io.NewSectionReader(f, 0, benchFileBytes), p)
			require.NoError(b, err)
			require.NoError(b, unix.Munmap(p))
		}
	})
	b.Run("alloc+load", load(func(driver.Memory) {}))
	b.Run("alloc+load+touch", load(func(m driver.Memory) {
		var sum byte
		for p := m.(driver.Mapped).Data(); len(p) > 0; p = p[min(len(p), 4096):] {
			sum += p[0]
		}
		touched = sum
	}))
	b.Run("load", func(b *testing.B) {
		b.SetBytes(benchFileBytes)
		for range b.N {
			b.StopTimer()
			m, err := dev.Alloc(benchFileBytes)
			require.NoError(b, err)
			b.StartTimer()
			require.NoError(b, m.(driver.Loader).LoadAt(f, 0, 0, benchFileBytes, nil))
			b.StopTimer()
			require.NoError(b, m.Close())
			b.StartTimer()
		}
	})
}

// BenchmarkImport measures the device's part of attaching: importing, mapping and closing one handle.
func BenchmarkImport(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int64
	}{{"64MiB", 64 << 20}, {"4GiB", 4 << 30}} {
		b.Run(size.name, func(b *testing.B) {
			dev, err := Open(Lazy())
			require.NoError(b, err)
			m, err := dev.Alloc(size.bytes)
			require.NoError(b, err)
			defer m.Close()
			h, err := m.Export()
			require.NoError(b, err)
			defer h.Close()
			b.ReportAllocs()
			for b.Loop() {
				peer, err := dev.Import(h, driver.ImportOptions{})
				if err != nil {
					b.Fatal(err)
				}
				peer.Close()
			}
		})
	}
}

// BenchmarkAlloc measures the cost of allocating pages at once.
func BenchmarkAlloc(b *testing.B) {
	for _, mode := range []struct {
		name string
		opts []Option
	}{{"reserved", nil}, {"lazy", []Option{Lazy()}}} {
		b.Run(mode.name, func(b *testing.B) {
			dev, err := Open(mode.opts...)
			require.NoError(b, err)
			for b.Loop() {
				m, err := dev.Alloc(256 << 20)
				if err != nil {
					b.Fatal(err)
				}
				m.Close()
			}
		})
	}
}
