package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// The program runs on the stand-in for the driver.
func TestProgram(t *testing.T) {
	env := cudatest.Options{Devices: 2}.Env(t)
	path := filepath.Join(t.TempDir(), "cuda")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := exec.Command(path)
	c.Env = env
	out, err = c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "cuda:0  Fake GPU 0  1024 MiB")
	require.Contains(t, string(out), "cuda:1  Fake GPU 1")
	var want int
	for i := range 1 << 20 {
		want += 2*(i%10) + 1
	}
	require.Regexp(t, `sums to `+strconv.Itoa(want)+`\n$`, string(out))

	// Without a driver it reports what is missing.
	c = exec.Command(path)
	c.Env = []string{"SHAREDTENSOR_LIBCUDA=/nonexistent/libcuda.so.1"}
	out, err = c.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no CUDA driver library")
}
