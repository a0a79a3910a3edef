package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const numbers = "tensor([0.5000, 1.5000, 2.5000, 3.5000])"

// The program runs alone, as an owner, and as a client of that owner.
func TestThreeRoles(t *testing.T) {
	dir, err := os.MkdirTemp("", "st") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "auto")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	as := func(env ...string) *exec.Cmd {
		c := exec.Command(program)
		c.Env = append(os.Environ(), append(env, "SHARED_TENSOR_BASE_PATH="+filepath.Join(dir, "s"))...)
		return c
	}

	alone := as()
	out, err = alone.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, fmt.Sprintf("making weights in process %d\nlocal in process %[1]d has %s\n", alone.Process.Pid, numbers), string(out))

	owner := as("SHARED_TENSOR_ENABLED=1", "SHARED_TENSOR_ROLE=server")
	stdout, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "making weights")
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "server in process")

	for range 2 {
		client := as("SHARED_TENSOR_ENABLED=1")
		out, err = client.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, fmt.Sprintf("client in process %d has %s\n", client.Process.Pid, numbers), string(out))
	}
	require.NoError(t, owner.Process.Signal(syscall.SIGTERM))
	require.False(t, lines.Scan(), "the owner made the weights once: %s", lines.Text())
	require.NoError(t, owner.Wait())
	out, err = as("SHARED_TENSOR_ENABLED=1").CombinedOutput()
	require.Error(t, err)
	require.True(t, strings.Contains(string(out), "no owner is serving"), "%s", out)
}
