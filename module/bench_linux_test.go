package module_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/module"
)

// BenchmarkPlainRead reads a file of the same size into fresh anonymous memory, because Go's allocator would reuse
// memory.
func BenchmarkPlainRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "m")
	require.NoError(b, module.SynthesizeFile(path, module.Synthetic{Tensors: 200, Bytes: benchBytes}))
	f, err := os.Open(path)
	require.NoError(b, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(b, err)
	b.SetBytes(info.Size())
	for b.Loop() {
		memory, err := syscall.Mmap(-1, 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.ReadAt(memory, 0); err != nil {
			b.Fatal(err)
		}
		syscall.Munmap(memory)
	}
}

// coldBytes is the size of the model that is read from disk.
const coldBytes = 2 << 30

// coldFile returns a model, and a function that drops it from the page cache.
func coldFile(b *testing.B) (f *os.File, size int64, drop func()) {
	path := filepath.Join(b.TempDir(), "m.safetensors")
	require.NoError(b, module.SynthesizeFile(path, module.Synthetic{Tensors: 200, Bytes: coldBytes}))
	f, err := os.Open(path)
	require.NoError(b, err)
	b.Cleanup(func() { f.Close() })
	require.NoError(b, f.Sync())
	info, err := f.Stat()
	require.NoError(b, err)
	return f, info.Size(), func() { require.NoError(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)) }
}

// BenchmarkLoadCold loads a model that is not in the page cache.
func BenchmarkLoadCold(b *testing.B) {
	dev := openHost(b)
	f, size, drop := coldFile(b)
	b.SetBytes(size)
	for b.Loop() {
		b.StopTimer()
		drop()
		b.StartTimer()
		sd, err := module.Load(context.Background(), dev, f.Name(), module.LoadOptions{})
		require.NoError(b, err)
		require.NoError(b, sd.Close())
	}
}

// BenchmarkPlainReadCold measures the disk: one goroutine reading sequentially, and eight reading parts, into allocated
// memory.
func BenchmarkPlainReadCold(b *testing.B) {
	f, size, drop := coldFile(b)
	for name, readers := range map[string]int64{"one": 1, "eight": 8} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				b.StopTimer()
				drop()
				b.StartTimer()
				var all sync.WaitGroup
				for i := range readers {
					all.Go(func() {
						from, to := size*i/readers, size*(i+1)/readers
						_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.NewSectionReader(f, from, to-from), make([]byte, 4<<20))
					})
				}
				all.Wait()
			}
		})
	}
}
