//go:build unix

package endpointtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// Eventually waits for what another goroutine or process brings about; the test fails if that takes longer than limit.
// Unlike require.Eventually it calls ok in the goroutine of the test, and never twice at a time.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(t, "did not come about within "+limit.String(), what)
		}
	}
}

var socketNumber atomic.Int64

// SocketPath is a path for a socket in a directory of the test, short enough for the kernel. Only this user may open
// the directory, which is removed with the test.
func SocketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, fmt.Sprintf("s%d.sock", socketNumber.Add(1)))
}

// Counts are what a process has open.
type Counts struct {
	// Files are its descriptors.
	Files int
	// Mappings are its mappings of shared memory.
	Mappings int
	// Goroutines are its goroutines, the caller's included.
	Goroutines int
}

// startPoller has the runtime open the descriptors of its network poller, which stay.
var startPoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
})

// Count counts, after a garbage collection.
func Count() Counts {
	startPoller()
	runtime.GC()
	return Counts{drivertest.OpenFiles(), drivertest.SharedMappings(), runtime.NumGoroutine()}
}

// Within reports whether c is no more than the other in each count.
func (c Counts) Within(other Counts) bool {
	return c.Files <= other.Files && c.Mappings <= other.Mappings && c.Goroutines <= other.Goroutines
}
