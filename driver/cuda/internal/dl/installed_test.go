package dl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The environment precedes the usual places, newer versions precede older ones, and only existing files are returned.
func TestInstalled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, path := range []string{
		"toolkit/lib64/libx.so.12", "venv/lib/python3.9/site-packages/nvidia/cu13/lib/libx.so.13",
		"venv/lib/python3.13/site-packages/nvidia/x/lib/libx.so.12", "user/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.13",
		"user/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.12",
	} {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	env := map[string]string{"CUDA_HOME": root + "/toolkit", "VIRTUAL_ENV": root + "/venv", "HOME": root + "/user", "CONDA_PREFIX": "relative"}
	names, wheel := []string{"libx.so.13", "libx.so.12", "/a/path.so"}, []string{"nvidia/cu13/lib", "nvidia/x/lib"}
	require.Equal(t, []string{
		root + "/toolkit/lib64/libx.so.12",
		root + "/venv/lib/python3.13/site-packages/nvidia/x/lib/libx.so.12",
		root + "/venv/lib/python3.9/site-packages/nvidia/cu13/lib/libx.so.13",
		root + "/user/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.13",
		root + "/user/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.12",
	}, installed(names, wheel, func(name string) string { return env[name] }))
	require.Empty(t, installed(names, nil, func(name string) string { return env[name] }), "a library of the driver")
}

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	for _, less := range [][2]string{{"cuda-9.2", "cuda-12.1"}, {"cuda-12.1", "cuda-12.10"}, {"python3.9", "python3.13"}, {"a", "b"}, {"a", "a1"}} {
		require.Negative(t, compareVersions(less[0], less[1]), less)
		require.Positive(t, compareVersions(less[1], less[0]), less)
	}
	require.Zero(t, compareVersions("x1", "x1"))
}
