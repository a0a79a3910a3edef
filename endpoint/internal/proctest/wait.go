//go:build unix

package proctest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// Eventually waits until ok returns true. The test fails if that takes longer than limit. Unlike require.Eventually, it
// calls ok in the goroutine of the test, one call at a time.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(t, "condition not met within "+limit.String(), what)
		}
	}
}

var socketNumber atomic.Int64

// SocketPath returns a path for a socket in a new directory that is removed after the test. The path is short enough
// for the kernel, and only this user can access the directory.
func SocketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, fmt.Sprintf("s%d.sock", socketNumber.Add(1)))
}

// Counts holds the numbers of open resources of a process.
type Counts struct {
	// Files is the number of descriptors.
	Files int
	// Mappings is the number of mappings of shared memory.
	Mappings int
	// Goroutines is the number of goroutines, including the caller's.
	Goroutines int
}

// startPoller makes the runtime open the descriptors of its network poller, which then stay open.
var startPoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
})

// Count runs the garbage collector and returns the counts.
func Count() Counts {
	startPoller()
	runtime.GC()
	return Counts{drivertest.OpenFiles(), drivertest.SharedMappings(), runtime.NumGoroutine()}
}

// Within reports whether each count of c is at most that of other.
func (c Counts) Within(other Counts) bool {
	return c.Files <= other.Files && c.Mappings <= other.Mappings && c.Goroutines <= other.Goroutines
}

// RaceDetector reports whether the test has the race detector, which makes it several times slower.
func RaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
