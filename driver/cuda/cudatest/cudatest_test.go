package cudatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

func TestFakeCountsAndFails(t *testing.T) {
	runtime.LockOSThread() // the current context is one of the thread
	defer runtime.UnlockOSThread()
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

	// A failing call does nothing, except the release of a primary context and any release after a fault.
	var p cu.DevicePtr
	require.NoError(t, cu.CtxPushCurrent(ctx).Err())
	require.NoError(t, cu.MemAlloc(&p, 100).Err())
	f.FailEvery("cuMemFree", cu.ERROR_UNKNOWN)
	require.Equal(t, cu.ERROR_UNKNOWN, cu.MemFree(p))
	require.Equal(t, cu.ERROR_UNKNOWN, cu.MemFree(p))
	require.Equal(t, map[string]int64{"contexts": 1, "allocations": 1}, f.Live())
	f.FailFunction("cuMemFree", 1, cu.ERROR_ILLEGAL_ADDRESS)
	require.Equal(t, cu.ERROR_ILLEGAL_ADDRESS, cu.MemFree(p))
	require.Equal(t, map[string]int64{"contexts": 1}, f.Live())
	require.NoError(t, cu.CtxPopCurrent(nil).Err())
	f.FailCall(1, cu.ERROR_UNKNOWN)
	require.Equal(t, cu.ERROR_UNKNOWN, cu.DevicePrimaryCtxRelease(1))
	require.Empty(t, f.Live())
}

// The library compiles without warnings with the installed compiler.
func TestNoWarnings(t *testing.T) {
	Build(t) // skips the test if there is no compiler
	files, err := unpack(t.TempDir())
	require.NoError(t, err)
	require.NotEmpty(t, files)
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	out, err := exec.Command(name, append([]string{"-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"}, files...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The example of the package's documentation runs as a test of another module.
func TestStartFromAnotherModule(t *testing.T) {
	Build(t)
	tool, err := exec.LookPath("go")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("no go command")
	}
	require.NoError(t, err)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(mod), "\n") // the Go version and the requirements
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)

	const ours = "github.com/sharedtensor/sharedtensor"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":       fmt.Sprintf("module example.com/other\n%s\nrequire %s v0.0.0\n\nreplace %s => %s\n", rest, ours, ours, root),
		"go.sum":       string(sums),
		"main_test.go": documented(t),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.Command(tool, "test", "-mod=mod", "-count=1", "-timeout=60s", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SHAREDTENSOR_REQUIRE_CC=1", "SHAREDTENSOR_LIBCUDA=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// documented returns the example of the package comment as a test file.
func documented(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("fake.go")
	require.NoError(t, err)
	text := "package other\n\nimport (\n\t\"errors\"\n\t\"testing\"\n\n" +
		"\t\"github.com/sharedtensor/sharedtensor/driver\"\n\t\"github.com/sharedtensor/sharedtensor/driver/cuda\"\n" +
		"\t\"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest\"\n)\n\n"
	for line := range strings.Lines(string(doc)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			text += code
		}
	}
	return text
}

func TestOldLibraryBuilds(t *testing.T) {
	require.NotEqual(t, Build(t), Build(t, "FAKECUDA_OLD"))
}
