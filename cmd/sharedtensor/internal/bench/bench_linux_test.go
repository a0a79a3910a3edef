package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// workerEnv makes this test binary run as a worker, or crash if its value is "crash".
const workerEnv = "SHAREDTENSOR_BENCH_TEST_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(workerEnv) {
	case "":
		os.Exit(m.Run())
	case "crash":
		fmt.Fprintln(os.Stderr, "no luck")
		os.Exit(3)
	}
	if err := Work(context.Background(), os.Stdin, os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// options returns options for a short measurement. The directory for temporary files must be empty after the test.
func options(t *testing.T, worker string) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "st-") // not t.TempDir, whose path is too long for a socket
	require.NoError(t, err)
	t.Setenv("TMPDIR", dir)
	t.Setenv(workerEnv, worker)
	exe, err := os.Executable()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(dir), "files are left") })
	return Options{Worker: []string{exe}, MaxBytes: 4 << 20, Clients: 20}
}

// Every benchmark returns its figures and leaves no processes or files behind.
func TestEveryBenchmarkRuns(t *testing.T) {
	want := map[string][]string{
		"ping":     {"ping-p50", "ping-p99"},
		"attach":   {"attach-1", "attach-100", "attach-1000", "attach-10000", "attach-each"},
		"bytes":    {"attach-4MiB"},
		"load":     {"load-4MiB"},
		"clients":  {"client-memory", "ping-20-idle"},
		"shutdown": {"shutdown-2-idle"},
		"kill":     {"kill"},
	}
	for _, b := range All() {
		t.Run(b.Name, func(t *testing.T) {
			drivertest.Leaks(t)
			results, err := b.Run(context.Background(), options(t, "1"))
			require.NoError(t, err)
			var names []string
			for _, r := range results {
				names = append(names, r.Name)
				require.NotEmpty(t, r.Unit)
				require.GreaterOrEqual(t, r.Value, 0.0)
				require.Equal(t, r.Floor == nil, r.Ratio == nil)
			}
			require.Equal(t, want[b.Name], names)
		})
	}
}

// A benchmark that is cancelled at any moment ends with the cause and leaves nothing behind.
func TestRunCancelled(t *testing.T) {
	stopped := errors.New("stopped")
	for i, b := range All() {
		t.Run(b.Name, func(t *testing.T) {
			drivertest.Leaks(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			time.AfterFunc(time.Duration(i)*20*time.Millisecond, func() { cancel(stopped) })
			o := options(t, "1")
			o.Limit = time.Minute
			_, err := b.Run(ctx, o)
			require.ErrorIs(t, err, stopped)
			require.ErrorContains(t, err, "benchmark "+b.Name)
		})
	}
}

func TestWorkerCrash(t *testing.T) {
	drivertest.Leaks(t)
	_, err := All()[0].Run(context.Background(), options(t, "crash"))
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no luck")
	o := options(t, "1")
	o.Worker = []string{"/nowhere/sharedtensor"}
	_, err = All()[0].Run(context.Background(), o)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWorkKeepsOtherDirectories(t *testing.T) {
	require.ErrorContains(t, Work(context.Background(), os.Stdin, os.Stdout, filepath.Dir(t.TempDir())), "is not a directory of a benchmark")
}

func TestQuantiles(t *testing.T) {
	require.Zero(t, turns(nil).quantile(0.5))
	require.EqualValues(t, 3, turns{{5, 1}, {4, 2, 3}}.quantile(0.5))
	require.EqualValues(t, 5, turns{{5, 1}, {4, 2, 3}}.quantile(0.99))
	require.EqualValues(t, 2, turns{{9, 9, 1}, {2, 2, 2}, {7}, {8}}.quiet())
}

func TestResult(t *testing.T) {
	r := newResult("a", 1234.56, 0, "B")
	require.Equal(t, Result{Name: "a", Value: 1235, Unit: "B"}, r)
	r = newResult("a", 26.1, 20, "µs")
	require.InDelta(t, 1.305, *r.Ratio, 1e-9)
	require.InDelta(t, 20, *r.Floor, 1e-9)
}

func TestProcField(t *testing.T) {
	n, err := procField("/proc/self/status", "RssAnon:")
	require.NoError(t, err)
	require.Greater(t, n, int64(1<<18))
	_, err = procField("/proc/self/status", "Nothing:")
	require.ErrorContains(t, err, "has no Nothing:")
	_, err = procField("/proc/self/status", "Name:")
	require.Error(t, err)
}
