package safetensors

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ReadAhead brings the requested bytes of a file into the page cache, and no others.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	path := filepath.Join(t.TempDir(), "m.safetensors")
	h, err := NewHeader([]TensorInfo{{Name: "a", DType: tensor.Uint8, Shape: tensor.Shape{size}}}, nil)
	require.NoError(t, err)
	require.NoError(t, WriteFile(path, h, writeZeros))
	model, err := Open(path)
	require.NoError(t, err)
	defer model.Close()
	f := model.Files[0]
	require.NoError(t, f.f.Sync())
	require.NoError(t, unix.Fadvise(int(f.f.Fd()), 0, 0, unix.FADV_DONTNEED))
	drivertest.Needs(t, "pagecache", resident(t, f.f, 0, size) <= size/2, "this file system keeps its files in memory")
	f.ReadAhead(0, size/4)
	deadline := time.Now().Add(20 * time.Second)
	for resident(t, f.f, 0, size/4) < size/4 {
		require.True(t, time.Now().Before(deadline), "%d of %d bytes are in memory", resident(t, f.f, 0, size/4), size/4)
		time.Sleep(time.Millisecond)
	}
	require.Less(t, resident(t, f.f, size/2, size/2), int64(size/4))
	f.ReadAhead(-5, 10)
	f.ReadAhead(size*2, size) // outside the file
}

// writeZeros writes a tensor of zeros.
func writeZeros(w io.Writer, info TensorInfo) error {
	_, err := w.Write(make([]byte, info.Bytes()))
	return err
}

// resident returns how many bytes of a part of a file are in the page cache.
func resident(t *testing.T, f *os.File, off, n int64) int64 {
	t.Helper()
	mapping, err := unix.Mmap(int(f.Fd()), off, int(n), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(mapping)
	pages := make([]byte, int(n)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(n), uintptr(unsafe.Pointer(&pages[0])))
	require.Zero(t, errno)
	sum := int64(0)
	for _, page := range pages {
		sum += int64(page&1) * int64(os.Getpagesize())
	}
	return sum
}
