package service_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// built is the folder with the programs of this example.
var built struct {
	once   sync.Once
	folder string
	output []byte
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		os.RemoveAll(built.folder)
	}
	os.Exit(code)
}

// programs builds the programs of this example, once.
func programs(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		built.folder, built.err = os.MkdirTemp("", "st")
		if built.err == nil {
			built.output, built.err = exec.Command("go", "build", "-o", built.folder+"/", "./owner", "./client", "./web").CombinedOutput()
		}
	})
	require.NoError(t, built.err, "%s", built.output)
	return built.folder
}

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s.sock")
}

// startOwner starts the owner and returns when it serves.
func startOwner(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	owner := exec.Command(filepath.Join(programs(t), "owner"), socket)
	log, err := owner.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	lines := bufio.NewScanner(log)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "serving "+socket)
	return owner
}

// An option is not taken for the path of a socket.
func TestOwnerUsage(t *testing.T) {
	t.Parallel()
	program := filepath.Join(programs(t), "owner") // builds it, which takes longer than the limit on a busy machine
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	owner := exec.CommandContext(ctx, program, "--help")
	owner.Dir = t.TempDir()
	out, err := owner.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "usage: owner SOCKET")
	require.NoFileExists(t, filepath.Join(owner.Dir, "--help"))
}

// The owner and the client of this example run as separate processes.
func TestOwnerAndClient(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	socket := socketPath(t)
	owner := startOwner(t, socket)

	for range 2 {
		out, err := exec.Command(filepath.Join(dir, "client"), socket).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "task completed")
		require.Contains(t, string(out), "model with 3 tensors, 196608 bytes")
		require.Contains(t, string(out), "transform tensor([11., 21., 31.])")
		require.Regexp(t, `spectral norm \d+\.\d+ after 50 steps`, string(out))
	}

	require.NoError(t, owner.Process.Signal(syscall.SIGTERM))
	require.NoError(t, owner.Wait())
	require.NoFileExists(t, socket)
	out, err := exec.Command(filepath.Join(dir, "client"), socket).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no owner is serving")
}
