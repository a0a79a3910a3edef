package cudatest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

func TestFakeCountsAndFails(t *testing.T) {
	f := Start(t, Options{Devices: 2, Memory: 64 << 20})
	require.NoError(t, cu.Init(0).Err())
	var n int32
	require.NoError(t, cu.DeviceGetCount(&n).Err())
	require.EqualValues(t, 2, n)

	var ctx cu.Context
	require.NoError(t, cu.DevicePrimaryCtxRetain(&ctx, 1).Err())
	require.Equal(t, map[string]int64{"contexts": 1}, f.Live())

	f.FailFunction("cuDeviceGetCount", 2, cu.ERROR_OUT_OF_MEMORY)
	require.Equal(t, cu.SUCCESS, cu.DeviceGetCount(&n))
	require.Empty(t, f.Failed())
	require.Equal(t, cu.ERROR_OUT_OF_MEMORY, cu.DeviceGetCount(&n))
	require.Equal(t, "cuDeviceGetCount", f.Failed())
	require.Equal(t, cu.SUCCESS, cu.DeviceGetCount(&n))

	// A releasing call that is made to fail has done its work.
	f.FailCall(1, cu.ERROR_UNKNOWN)
	require.Equal(t, cu.ERROR_UNKNOWN, cu.DevicePrimaryCtxRelease(1))
	require.Empty(t, f.Live())
}

// TestNoWarnings holds the library to the compiler that is here.
func TestNoWarnings(t *testing.T) {
	Build(t) // skips where there is no compiler
	dir, err := sources()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	out, err := exec.Command(name, append([]string{"-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"}, files...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestOldLibraryBuilds(t *testing.T) {
	require.NotEqual(t, Build(t), Build(t, "FAKECUDA_OLD"))
}
