package message

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/wire"
)

// openPipe returns a pair of connections that the test closes.
func openPipe(t testing.TB, limits wire.Limits) (a, b *wire.Conn) {
	t.Helper()
	a, b, err := wire.Pipe(limits)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
	})
	return a, b
}

// numberedFiles returns n memory files, each containing its index as text.
func numberedFiles(t testing.TB, n int) []*os.File {
	t.Helper()
	files := make([]*os.File, n)
	for i := range files {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		files[i] = os.NewFile(uintptr(fd), "test")
		_, err = files[i].WriteString(strconv.Itoa(i))
		require.NoError(t, err)
		t.Cleanup(func() { _ = files[i].Close() })
	}
	return files
}

// checkDescriptors checks at the end of the test that it left no descriptor open. It must be called before the test
// registers other cleanups.
func checkDescriptors(t testing.TB) {
	t.Helper()
	a, b, err := wire.Pipe(wire.Limits{}) // makes the runtime open the descriptors that it keeps
	require.NoError(t, err)
	_ = a.Close()
	_ = b.Close()
	before := openDescriptors(t)
	t.Cleanup(func() { require.Equal(t, before, openDescriptors(t), "descriptors") })
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
