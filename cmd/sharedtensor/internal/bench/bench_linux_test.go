package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// watched records the worker processes that it starts.
type watched struct{ commands []*exec.Cmd }

func (w *watched) start(ctx context.Context) (*exec.Cmd, error) {
	cmd, err := again(ctx)
	w.commands = append(w.commands, cmd)
	return cmd, err
}

// gone checks that every process has ended and was reaped.
func (w *watched) gone(t *testing.T) {
	t.Helper()
	for _, cmd := range w.commands {
		if cmd.Process == nil {
			continue // never started
		}
		require.NotNil(t, cmd.ProcessState, "process %d was not waited for", cmd.Process.Pid)
	}
}

// emptyTemp sets the system's temporary directory to an empty one during the test.
func emptyTemp(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

// Every benchmark returns its figures and leaves no processes or files behind.
func TestEveryBenchmarkRuns(t *testing.T) {
	want := map[string][]string{
		"ping":     {"ping-p50", "ping-p99"},
		"attach":   {"attach-1", "attach-100", "attach-1000", "attach-10000", "attach-each"},
		"bytes":    {"attach-4MiB", "attach-heap"},
		"load":     {"load-4MiB"},
		"clients":  {"client-memory", "ping-8-idle"},
		"shutdown": {"shutdown-4-idle"},
		"kill":     {"kill"},
	}
	for _, b := range All() {
		t.Run(b.Name, func(t *testing.T) {
			drivertest.Leaks(t)
			dir := emptyTemp(t)
			var w watched
			results, err := b.Run(context.Background(), Options{Worker: w.start, Effort: Once})
			require.NoError(t, err)
			w.gone(t)
			var names []string
			for _, r := range results {
				names = append(names, r.Name)
				checkResult(t, r)
			}
			require.Equal(t, want[b.Name], names)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// checkResult checks that a result is consistent with its JSON encoding.
func checkResult(t *testing.T, r Result) {
	t.Helper()
	require.NotEmpty(t, r.Unit)
	require.GreaterOrEqual(t, r.Value, 0.0)
	require.Equal(t, r.Floor == nil, r.Ratio == nil)
	if r.Ratio != nil {
		require.Positive(t, *r.Floor)
		require.InEpsilon(t, r.Value / *r.Floor, *r.Ratio, 0.01)
	}
	if r.Target == nil {
		require.True(t, r.OK)
	}
	data, err := json.Marshal(r)
	require.NoError(t, err)
	var keys map[string]any
	require.NoError(t, json.Unmarshal(data, &keys))
	require.Len(t, keys, 7)
	for _, key := range []string{"name", "value", "unit", "floor", "ratio", "target", "ok"} {
		require.Contains(t, keys, key)
	}
}

// A benchmark that is cancelled at any moment ends with the cause and leaves nothing behind. Each iteration cancels
// later.
func TestRunCancelled(t *testing.T) {
	stopped := errors.New("stopped")
	for i, b := range All() {
		t.Run(b.Name, func(t *testing.T) {
			drivertest.Leaks(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			dir := emptyTemp(t)
			var w watched
			started := 0
			_, err := b.Run(ctx, Options{Effort: Once, Worker: func(ctx context.Context) (*exec.Cmd, error) {
				if started++; started > i%3 {
					time.AfterFunc(time.Duration(i)*3*time.Millisecond, func() { cancel(stopped) })
				}
				return w.start(ctx)
			}})
			if err != nil { // it may have finished first
				require.ErrorIs(t, err, stopped)
				require.ErrorContains(t, err, "benchmark "+b.Name)
			}
			w.gone(t)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestWorkerCrash(t *testing.T) {
	drivertest.Leaks(t)
	_, err := Ping(context.Background(), Options{Effort: Once, Worker: func(ctx context.Context) (*exec.Cmd, error) {
		return exec.CommandContext(ctx, "/bin/sh", "-c", "echo no luck >&2; exit 3"), nil
	}})
	require.ErrorContains(t, err, "the worker process ended")
	require.ErrorContains(t, err, "no luck")
	_, err = Ping(context.Background(), Options{Effort: Once, Worker: func(ctx context.Context) (*exec.Cmd, error) {
		return exec.CommandContext(ctx, "/nowhere/sharedtensor"), nil
	}})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A worker ends while it works if its input is closed, as when its parent process ends.
func TestWorkerEndsWithParent(t *testing.T) {
	s, err := newStage(context.Background(), Options{Worker: again})
	require.NoError(t, err)
	defer s.close()
	p, _, err := s.owner()
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(p.in).Encode(order{Do: "connect", Socket: s.socket() + "/nobody", Count: 1}))
	require.NoError(t, p.in.Close())
	_, err = io.Copy(io.Discard, p.bare) // returns when the process ends
	require.NoError(t, err)
}

func TestOrderErrors(t *testing.T) {
	s, err := newStage(context.Background(), Options{Worker: again})
	require.NoError(t, err)
	defer s.close()
	p, _, err := s.owner()
	require.NoError(t, err)
	for want, o := range map[string]order{
		`a worker cannot "fly"`: {Do: "fly"},
		"0 tensors":             {Do: "publish", Name: "a", Tensors: 0, Bytes: 1 << 20},
		"no owner is serving":   {Do: "connect", Socket: s.socket(), Count: 1},
		"not found":             {Do: "withdraw", Name: "b"},
	} {
		_, err := p.do(o)
		require.ErrorContains(t, err, o.Do)
		require.ErrorContains(t, err, want)
		require.False(t, outOfMemory(err))
	}
	_, err = p.do(order{Do: "publish", Name: "a", Tensors: 1, Bytes: 1 << 46})
	require.True(t, outOfMemory(err), err)
}

func TestMeasureSelf(t *testing.T) {
	var r report
	require.NoError(t, measureSelf(&r))
	require.Greater(t, r.Anonymous, int64(1<<18))
	_, err := procField("/proc/self/status", "Nothing:")
	require.ErrorContains(t, err, "has no Nothing:")
	_, err = procField("/proc/self/status", "Name:")
	require.ErrorIs(t, err, strconv.ErrSyntax)
	require.Positive(t, descriptors())
	require.True(t, strings.HasSuffix(sizeName(4<<30), "4GiB"))
}

// A killed benchmark leaves no directory behind.
func TestKilledBenchmarkCleanup(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), killedEnv+"="+dir, "TMPDIR="+dir)
	require.NoError(t, cmd.Start())
	count := func(pattern string) int {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		return len(found)
	}
	require.Eventually(t, func() bool { return count("sharedtensor-bench-*/.model*") == 1 }, 20*time.Second, time.Millisecond, "it writes its file")
	require.Equal(t, 2, count("sharedtensor-bench-*"), "the directories of the sockets and of the file")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return count("*") == 0 }, 20*time.Second, 5*time.Millisecond, "they are gone")
}
