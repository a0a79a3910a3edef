package module_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// files are the names in a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSaveShardedIsLoadedAsOne(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	defer sd.Close()
	sd.Metadata = map[string]string{"format": "pt"}
	set(t, dev, sd, "a", 1, 2)                       // 8 bytes
	set(t, dev, sd, "large", 1, 2, 3, 4, 5, 6, 7, 8) // 32
	set(t, dev, sd, "b", 3)
	set(t, dev, sd, "c", 4)
	set(t, dev, sd, "lm_head", 5, 6)
	tie(t, sd, "wte", "lm_head")
	set(t, dev, sd, "nothing")

	dir := filepath.Join(t.TempDir(), "model")
	var done, total []int64
	err := module.SaveSharded(t.Context(), dir, sd, module.ShardOptions{ShardBytes: 12, SaveOptions: module.SaveOptions{
		Progress: func(d, all int64) { done, total = append(done, d), append(total, all) },
	}})
	require.NoError(t, err)
	require.Equal(t, []string{
		"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
		"model-00004-of-00004.safetensors", "model.safetensors.index.json",
	}, files(t, dir))
	require.Zero(t, done[0])
	require.Equal(t, int64(56), done[len(done)-1])
	require.Equal(t, int64(56), total[0])

	m, err := safetensors.Open(dir)
	require.NoError(t, err)
	require.Equal(t, int64(56), m.Index.TotalSize)
	for i, want := range [][]string{{"lm_head"}, {"a"}, {"large"}, {"b", "c", "nothing"}} {
		var got []string
		for _, x := range m.Files[i].Header.Tensors {
			got = append(got, x.Name)
		}
		require.ElementsMatch(t, want, got, "file %d", i)
	}
	require.NoError(t, m.Close())

	for path, names := range map[string][]string{
		dir: {"a", "b", "c", "large", "lm_head", "nothing", "wte"},
		filepath.Join(dir, "model-00001-of-00004.safetensors"): {"lm_head", "wte"}, // each file is a valid model
		filepath.Join(dir, "model-00004-of-00004.safetensors"): {"b", "c", "nothing"},
	} {
		back, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
		require.NoError(t, err)
		require.ElementsMatch(t, names, back.Names())
		require.Equal(t, "pt", back.Metadata["format"])
		for name, x := range back.All() {
			want, _ := sd.Get(name)
			equal, err := x.Equal(want)
			require.NoError(t, err)
			require.True(t, equal, name)
		}
		if path == dir {
			require.Equal(t, [][]string{{"lm_head", "wte"}}, back.Aliases())
		}
		require.NoError(t, back.Close())
	}

	err = module.SaveSharded(t.Context(), dir, sd, module.ShardOptions{})
	require.ErrorIs(t, err, fs.ErrExist, "a model that may be read is not written over")
	require.Len(t, files(t, dir), 5)
}

func TestSaveShardedLeavesNothingBehind(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	defer sd.Close()
	set(t, dev, sd, "a", 1, 2)
	set(t, dev, sd, "b", 3, 4)
	for _, there := range []bool{false, true} {
		parent := t.TempDir()
		dir := filepath.Join(parent, "model")
		if there {
			require.NoError(t, os.Mkdir(dir, 0o700))
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := module.SaveSharded(ctx, dir, sd, module.ShardOptions{ShardBytes: 8, SaveOptions: module.SaveOptions{
			Progress: func(done, _ int64) {
				if done == 8 { // the first file is almost written
					cancel()
				}
			},
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "model-00002-of-00002.safetensors")
		if there {
			require.Empty(t, files(t, dir))
		} else {
			require.Empty(t, files(t, parent))
		}
	}
	require.Error(t, module.SaveSharded(t.Context(), t.TempDir(), sd, module.ShardOptions{ShardBytes: -1}))
}

func TestSaveShardedOfNothing(t *testing.T) {
	t.Parallel()
	dir, sd := t.TempDir(), module.NewStateDict()
	require.NoError(t, module.SaveSharded(t.Context(), dir, sd, module.ShardOptions{}))
	back, err := module.Load(t.Context(), openHost(t), dir, module.LoadOptions{})
	require.NoError(t, err)
	require.Zero(t, back.Len())
	require.NoError(t, back.Close())
}

// A state dict is written to files of at most 16 bytes of tensors each, and read back.
func ExampleSaveSharded() {
	ctx := context.Background()
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	sd := module.NewStateDict()
	defer sd.Close()
	for _, name := range []string{"layer.0", "layer.1", "layer.2"} {
		x, err := tensor.Full(dev, tensor.Float32, tensor.Shape{2}, 1)
		if err != nil {
			log.Fatal(err)
		}
		if err := sd.Set(name, x); err != nil {
			log.Fatal(err)
		}
	}
	parent, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "model")
	if err := module.SaveSharded(ctx, dir, sd, module.ShardOptions{ShardBytes: 16}); err != nil {
		log.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Println(e.Name())
	}
	back, err := module.Load(ctx, dev, dir, module.LoadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer back.Close()
	fmt.Println(back.Names())
	// Output:
	// model-00001-of-00002.safetensors
	// model-00002-of-00002.safetensors
	// model.safetensors.index.json
	// [layer.0 layer.1 layer.2]
}
