package service_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOwnerAndClient runs the two programs of this example as a newcomer would.
func TestOwnerAndClient(t *testing.T) {
	dir, err := os.MkdirTemp("", "st") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	out, err := exec.Command("go", "build", "-o", dir+"/", "./owner", "./client").CombinedOutput()
	require.NoError(t, err, "%s", out)
	socket := filepath.Join(dir, "s.sock")

	owner := exec.Command(filepath.Join(dir, "owner"), socket)
	log, err := owner.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	lines := bufio.NewScanner(log)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "serving "+socket)

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
	out, err = exec.Command(filepath.Join(dir, "client"), socket).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no owner is serving")
}
