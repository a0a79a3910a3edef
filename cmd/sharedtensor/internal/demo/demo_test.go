//go:build linux

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The processes of the demo run this test binary with workerEnv set. The value "lie ROLE", "small ROLE" or "crash ROLE"
// makes one of them misbehave.
const workerEnv = "DEMO_TEST_WORKER"

func TestMain(m *testing.M) {
	if how, ok := os.LookupEnv(workerEnv); ok {
		os.Exit(workAs(how, os.Args[len(os.Args)-2], os.Args[len(os.Args)-1]))
	}
	os.Exit(m.Run())
}

// workAs is the main function of a demo process.
func workAs(how, role, dir string) int {
	var out io.Writer = os.Stdout
	switch how {
	case "lie " + role:
		out = liar{out}
	case "crash " + role:
		fmt.Fprintln(os.Stderr, "no reason at all")
		return 3
	case "small " + role: // a real failure of the kernel: a memfd cannot be that large
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4096, Max: 4096}); err != nil {
			panic(err)
		}
	}
	if err := Work(context.Background(), os.Stdin, out, role, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// liar changes the checksums that are written through it.
type liar struct{ w io.Writer }

var checksum = regexp.MustCompile(`"checksum":"[0-9a-f]+"`)

func (l liar) Write(p []byte) (int, error) {
	_, err := l.w.Write(checksum.ReplaceAll(p, []byte(`"checksum":"0123456789abcdef"`)))
	return len(p), err
}

// options returns options for a run in a new directory, which must be empty after the test.
func options(t *testing.T, how string) Options {
	t.Helper()
	// Not t.TempDir, whose path is too long for a socket.
	dir, err := os.MkdirTemp("", "st-")
	require.NoError(t, err)
	t.Setenv("TMPDIR", dir)
	t.Setenv(workerEnv, how)
	t.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // the race detector delays each exit by a second otherwise
	exe, err := os.Executable()
	require.NoError(t, err)
	files := openFiles(t)
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
		require.NoError(t, os.Remove(dir))
		require.Empty(t, children(t), "processes are left")
		require.Equal(t, files, openFiles(t), "descriptors are left")
	})
	return Options{Size: 1 << 18, Worker: []string{exe}}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, f := range list {
		to, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:") { // descriptors that the runtime opens on first use
			n++
		}
	}
	return n
}

// children lists the child processes of this process that have not been reaped.
func children(t *testing.T) string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	var all []string
	for _, path := range tasks {
		list, _ := os.ReadFile(path) // a thread may have ended in the meantime
		all = append(all, strings.Fields(string(list))...)
	}
	return strings.Join(all, " ")
}

func TestRun(t *testing.T) {
	var steps []Step
	opts := options(t, "")
	opts.Step = func(s Step, _ *Report) { steps = append(steps, s) }
	r, err := Run(context.Background(), opts)
	require.NoError(t, err)
	require.True(t, r.OK)
	require.Equal(t, []Step{
		ModelReady, OwnerServes, ClientAttached, ClientAttached, ClientAttached, AllAgree, MemoryMeasured,
		ClientKilledStep, VersionPublished, ClientSwitched, OwnerKilledStep, OwnerRestarted,
	}, steps)
	require.Len(t, r.Processes, 6)
	for _, p := range r.Processes {
		want := "exit status 0"
		if p.Role == "owner" || p.Role == "client 3" {
			want = "signal: killed"
		}
		require.Equal(t, want, p.End, p.Role)
	}
	require.Equal(t, "transformer", r.Result.Network)
	require.NotEqual(t, r.Result, r.Published.Result)
	require.Empty(t, r.Memory.Unknown)
	require.True(t, r.Memory.OneCopy)
	require.True(t, r.Restarted.Memory.OneCopy)
	require.Equal(t, 1, r.Restarted.Memory.Objects)
	require.Equal(t, 2, r.ClientKilled.Holders)
	require.Equal(t, map[uint64][]int{1: {r.Processes[1].PID}, 2: {r.Processes[2].PID}}, r.Published.Holders)
}

func TestRunSkipsSecondVersionWithoutMemory(t *testing.T) {
	r, err := Run(context.Background(), options(t, "small publisher"))
	require.NoError(t, err)
	require.True(t, r.OK)
	require.Nil(t, r.Published)
	require.NotEmpty(t, r.Skipped)
	require.True(t, r.OwnerKilled.Memory.OneCopy)
	require.Positive(t, r.OwnerKilled.Runs)
}

func TestRunDetectsDisagreement(t *testing.T) {
	for _, role := range []string{"client-2", "publisher", "client-1"} {
		t.Run(role, func(t *testing.T) {
			r, err := Run(context.Background(), options(t, "lie "+role))
			require.ErrorIs(t, err, ErrDisagree)
			require.False(t, r.OK)
			require.Equal(t, err.Error(), r.Error)
		})
	}
}

func TestRunNamesCrashedProcess(t *testing.T) {
	for _, role := range []string{"owner", "client-1", "publisher", "new-owner"} {
		t.Run(role, func(t *testing.T) {
			_, err := Run(context.Background(), options(t, "crash "+role))
			require.ErrorContains(t, err, strings.ReplaceAll(role, "-", " ")+", pid ")
			require.ErrorContains(t, err, "exit status 3")
			require.ErrorContains(t, err, "no reason at all")
		})
	}
}

func TestRunOwnerOutOfMemory(t *testing.T) {
	_, err := Run(context.Background(), options(t, "small owner"))
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
}

func TestRunInterruptedAtEachStep(t *testing.T) {
	errStop := errors.New("enough")
	for s := ModelReady; s < OwnerRestarted; s++ {
		t.Run(fmt.Sprintf("step %d", s), func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(context.Background())
			opts := options(t, "")
			opts.Step = func(at Step, _ *Report) {
				if at == s {
					cancel(errStop)
				}
			}
			_, err := Run(ctx, opts)
			require.ErrorIs(t, err, errStop)
		})
	}
}

// The demo runs on models that are not the network: mixed dtypes, and no tensors.
func TestRunOtherModels(t *testing.T) {
	for name, infos := range map[string][]safetensors.TensorInfo{
		"mixed": {
			{Name: "flags", DType: tensor.Bool, Shape: tensor.Shape{70000}},
			{Name: "half", DType: tensor.BFloat16, Shape: tensor.Shape{100, 33}},
			{Name: "none", DType: tensor.Float32, Shape: tensor.Shape{0, 4}},
			{Name: "scale", DType: tensor.Float8E4M3FN, Shape: tensor.Shape{}},
		},
		"flags": {{Name: "flags", DType: tensor.Bool, Shape: tensor.Shape{7}}},
		"empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(t, "")
			opts.Path = filepath.Join(t.TempDir(), "model.safetensors")
			h, err := safetensors.NewHeader(infos, nil)
			require.NoError(t, err)
			require.NoError(t, safetensors.WriteFile(opts.Path, h, func(w io.Writer, info safetensors.TensorInfo) error {
				_, err := w.Write(bytes.Repeat([]byte{1}, int(info.Bytes())))
				return err
			}))
			r, err := Run(context.Background(), opts)
			require.NoError(t, err)
			require.Equal(t, opts.Path, r.Model.Path)
			if name != "empty" {
				require.NotEqual(t, r.Result, r.Published.Result)
				require.Contains(t, []string{"half", "flags"}, r.Published.Changed)
			}
		})
	}
}

func TestRunMissingFile(t *testing.T) {
	opts := options(t, "")
	opts.Path = filepath.Join(t.TempDir(), "missing.safetensors")
	_, err := Run(context.Background(), opts)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, opts.Path)
}
