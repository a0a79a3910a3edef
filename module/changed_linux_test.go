package module_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// changes are the ways to change a file during a load.
var changes = map[string]func(t *testing.T, path string){
	"overwritten": func(t *testing.T, path string) { overwrite(t, path) },
	"overwritten, and the time set back": func(t *testing.T, path string) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		overwrite(t, path)
		require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime()))
	},
	"truncated": func(t *testing.T, path string) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(path, info.Size()-1))
	},
	"truncated and written again": func(t *testing.T, path string) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o600))
	},
	"longer": func(t *testing.T, path string) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(path, info.Size()+1))
	},
	"replaced": func(t *testing.T, path string) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path+".new", data, 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	},
	"removed": func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
}

// overwrite changes the last byte of a file in place.
func overwrite(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xEE}, info.Size()-1)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// changedModel writes a model and returns the path to open and the file to change.
type changedModel func(t *testing.T, dir string) (path, file string)

var changedModels = map[string]changedModel{
	"file": func(t *testing.T, dir string) (string, string) {
		path := filepath.Join(dir, "m.safetensors")
		writeModel(t, path, nil, map[string]int64{"a": 1 << 20, "b": 8})
		return path, path
	},
	"link": func(t *testing.T, dir string) (string, string) {
		path := filepath.Join(dir, "blob")
		writeModel(t, path, nil, map[string]int64{"a": 1 << 20, "b": 8})
		link := filepath.Join(dir, "m.safetensors")
		require.NoError(t, os.Symlink(path, link))
		return link, path
	},
	"shard": func(t *testing.T, dir string) (string, string) {
		writeShards(t, dir)
		return dir, filepath.Join(dir, "2")
	},
	"index": func(t *testing.T, dir string) (string, string) {
		writeShards(t, dir)
		return dir, filepath.Join(dir, "model.safetensors.index.json")
	},
	"gguf": func(t *testing.T, dir string) (string, string) {
		path := filepath.Join(dir, "m.gguf")
		writeGGUF(t, path, [2]string{"a", "b"}, nil)
		return path, path
	},
	"split gguf": func(t *testing.T, dir string) (string, string) {
		first, second := filepath.Join(dir, "m-00001-of-00002.gguf"), filepath.Join(dir, "m-00002-of-00002.gguf")
		writeGGUF(t, first, [2]string{"a", "b"}, splitOf(0, 2, 4))
		writeGGUF(t, second, [2]string{"c", "d"}, splitOf(1, 2, 4))
		return first, second
	},
}

func writeShards(t *testing.T, dir string) {
	t.Helper()
	writeModel(t, filepath.Join(dir, "1"), nil, map[string]int64{"a": 1 << 20})
	writeModel(t, filepath.Join(dir, "2"), nil, map[string]int64{"b": 1 << 20})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map":{"a":"1","b":"2"}}`), 0o600))
}

// A load of a file that changes meanwhile fails, for each kind of file, change and option, and leaves nothing. Afterwards the
// model has another fingerprint.
func TestLoadOfAFileThatChanges(t *testing.T) {
	for kind, write := range changedModels {
		for name, change := range changes {
			t.Run(kind+"/"+name, func(t *testing.T) {
				bothPaths(t, func(t *testing.T, dev driver.Device) {
					drivertest.Leaks(t)
					path, file := write(t, t.TempDir())
					before := fingerprint(t, path)
					require.NotEmpty(t, before)
					require.Equal(t, before, fingerprint(t, path))
					time.Sleep(10 * time.Millisecond) // the resolution of the times of old kernels
					_, err := module.Load(context.Background(), dev, path, module.LoadOptions{Progress: once(func() { change(t, file) })})
					require.ErrorIs(t, err, safetensors.ErrChanged)
					require.ErrorContains(t, err, file[:len(file)-len(filepath.Base(file))])
					require.NotEqual(t, before, fingerprint(t, path))
				})
			})
		}
	}
}

// Options and sources do not avoid the comparison.
func TestLoadOptionsOfAFileThatChanges(t *testing.T) {
	dev := openHost(t)
	for name, opts := range map[string]module.LoadOptions{
		"only":   {Only: func(name string) bool { return name == "a" }},
		"dtype":  {DType: func(string, tensor.DType) tensor.DType { return tensor.Int16 }},
		"device": {Device: func(string) driver.Device { return dev }},
		"layout": {FileLayout: true},
	} {
		path, file := changedModels["file"](t, t.TempDir())
		time.Sleep(10 * time.Millisecond)
		opts.Progress = once(func() { overwrite(t, file) })
		_, err := module.Load(context.Background(), dev, path, opts)
		require.ErrorIs(t, err, safetensors.ErrChanged, name)
	}
	_, file := changedModels["file"](t, t.TempDir())
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	time.Sleep(10 * time.Millisecond)
	_, err = module.LoadFrom(context.Background(), dev, f, info.Size(), module.LoadOptions{Progress: once(func() { overwrite(t, file) })})
	require.ErrorIs(t, err, safetensors.ErrChanged, "a file that the caller opened")
	sd, err := module.LoadFrom(context.Background(), dev, f, info.Size(), module.LoadOptions{})
	require.NoError(t, err)
	require.NoError(t, sd.Close())
}

// once returns a progress function that calls change at the first call.
func once(change func()) func(done, total int64) {
	return func(int64, int64) {
		if change != nil {
			change()
			change = nil
		}
	}
}

// fingerprint returns the fingerprint of a model, or the error of opening it.
func fingerprint(t *testing.T, path string) string {
	t.Helper()
	m, err := module.OpenModel(path)
	if err != nil {
		return err.Error()
	}
	defer m.Close()
	return m.Fingerprint()
}
