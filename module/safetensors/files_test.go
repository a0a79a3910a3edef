//go:build linux

package safetensors

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// rootOf opens a folder until the test ends.
func rootOf(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

// Models below a root are the same as without it. Names and links that lead out are refused for files, folders, indexes and
// shards.
func TestFilesBelowARoot(t *testing.T) {
	drivertest.Leaks(t)
	file := bytesOf(t, nil, "a")
	index := `{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}`
	outside := put(t, map[string]string{"model.safetensors": file, "1.safetensors": file, "2.safetensors": bytesOf(t, nil, "b"), "model.safetensors.index.json": index, "one.bin": file})
	dir := put(t, map[string]string{"x.safetensors": file})
	add := func(folder string, files ...string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o700))
		for _, name := range files {
			text, err := os.ReadFile(filepath.Join(outside, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, folder, name), text, 0o600))
		}
	}
	link := func(target, name string) { require.NoError(t, os.Symlink(target, filepath.Join(dir, name))) }
	out := func(name string) string { return filepath.Join(outside, name) }
	add("sharded", "1.safetensors", "2.safetensors", "model.safetensors.index.json")
	add("single", "one.bin")
	link("one.bin", "single/model.safetensors")
	link("sharded", "inside")
	add("shard-out", "1.safetensors", "model.safetensors.index.json")
	link(out("2.safetensors"), "shard-out/2.safetensors")
	add("index-out", "1.safetensors", "2.safetensors")
	link(out("model.safetensors.index.json"), "index-out/model.safetensors.index.json")
	add("model-out")
	link(out("model.safetensors"), "model-out/model.safetensors")
	add("other-out")
	link(out("one.bin"), "other-out/other.safetensors")
	link(outside, "folder-out")
	link("../"+filepath.Base(outside)+"/model.safetensors", "relative-out.safetensors")
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe.safetensors"), 0o600))

	disk := Files{Root: rootOf(t, dir)}
	for name, tensors := range map[string]int{"x.safetensors": 1, "./x.safetensors": 1, "sharded": 2, "sharded/": 2, "single": 1, "inside": 2, "sharded/model.safetensors.index.json": 2} {
		m, err := disk.OpenModel(name)
		require.NoError(t, err, name)
		require.Len(t, m.Tensors, tensors, name)
		require.NoError(t, m.Unchanged(), name)
		require.NoError(t, m.Close())
	}
	for _, name := range []string{"shard-out", "index-out", "model-out", "other-out", "folder-out", "folder-out/model.safetensors", "relative-out.safetensors",
		out("model.safetensors"), "../" + filepath.Base(outside) + "/model.safetensors", "sharded/../../x"} {
		_, err := disk.OpenModel(name)
		require.ErrorIs(t, err, ErrOutside, name)
		require.NotContains(t, err.Error(), dir+"/", name)
	}
	_, err := disk.OpenModel("pipe.safetensors")
	require.ErrorIs(t, err, ErrNotRegular)
	_, err = disk.OpenModel("none")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, ErrOutside)
	_, err = disk.OpenModel("x.safetensors/y")
	require.NotErrorIs(t, err, ErrOutside)

	// A file that another one replaced while the model was open.
	m, err := disk.OpenModel("sharded")
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, os.Remove(filepath.Join(dir, "sharded/2.safetensors")))
	link(out("2.safetensors"), "sharded/2.safetensors")
	require.ErrorIs(t, m.Unchanged(), ErrOutside)
}
