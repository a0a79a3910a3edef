// Package share_test runs the two programs of this example.
package share_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
)

func TestOwnerAndClient(t *testing.T) {
	dir, err := os.MkdirTemp("", "st") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	build := exec.Command("go", "build", "-o", dir+"/", "./owner", "./client")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	file, socket := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "s.sock")
	require.NoError(t, module.SynthesizeFile(file, module.Synthetic{Tensors: 3, Bytes: 1 << 16, Seed: 1}))

	owner := exec.Command(filepath.Join(dir, "owner"), socket, "m", file)
	log, err := owner.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	lines := bufio.NewScanner(log)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "serving m")

	client := func() string {
		out, err := exec.Command(filepath.Join(dir, "client"), socket, "m").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	first := client()
	require.Equal(t, 3, strings.Count(first, "float32"), first)
	require.Equal(t, first, client())

	require.NoError(t, owner.Process.Signal(syscall.SIGTERM))
	require.NoError(t, owner.Wait())
	require.NoFileExists(t, socket)
	out, err = exec.Command(filepath.Join(dir, "client"), socket, "m").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no owner is serving")
}
