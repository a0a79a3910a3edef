package module_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
)

// BenchmarkPlainRead reads a file of the same size into fresh anonymous memory, which Go's own allocator would reuse.
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
