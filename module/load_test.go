package module_test

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// bothPaths runs a test on the host device, which loads files by its own method, and on a device that can only be
// written.
func bothPaths(t *testing.T, test func(t *testing.T, dev driver.Device)) {
	t.Run("loader", func(t *testing.T) {
		drivertest.Leaks(t)
		test(t, openHost(t))
	})
	t.Run("windows", func(t *testing.T) {
		drivertest.Leaks(t)
		test(t, &plainDevice{Device: openHost(t)})
	})
}

// writeModel writes tensors of the given sizes, with bytes that depend on name and position.
func writeModel(t *testing.T, path string, metadata map[string]string, sizes map[string]int64) {
	t.Helper()
	var infos []safetensors.TensorInfo
	for name, n := range sizes {
		infos = append(infos, safetensors.TensorInfo{Name: name, DType: tensor.Uint8, Shape: tensor.Shape{n}})
	}
	h, err := safetensors.NewHeader(infos, metadata)
	require.NoError(t, err)
	require.NoError(t, safetensors.WriteFile(path, h, func(w io.Writer, info safetensors.TensorInfo) error {
		_, err := w.Write(content(info.Name, info.Bytes()))
		return err
	}))
}

// content returns the bytes that writeModel writes for a tensor.
func content(name string, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = name[0] + byte(i) + byte(i>>8)*3 + byte(i>>16)*7
	}
	return b
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	// Sizes around the alignment, one larger than a window, and one empty.
	sizes := map[string]int64{"a": 1, "b": 255, "c": 256, "d": 257, "e": 0, "f": 17<<20 + 3, "g": 4096, "h": 512}
	writeModel(t, path, map[string]string{"format": "pt", "of": "d", safetensors.TiedKey: `{"tied":"d"}`}, sizes)
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		var done, total, calls int64
		sd, err := module.Load(t.Context(), dev, path, module.LoadOptions{Progress: func(d, n int64) {
			require.GreaterOrEqual(t, d, done)
			done, total = d, n
			calls++
		}})
		require.NoError(t, err)
		require.Equal(t, total, done)
		require.Equal(t, int64(17<<20+3+1+255+256+257+4096+512), total)
		require.Greater(t, calls, int64(2))

		require.Equal(t, []string{"a", "b", "c", "d", "e", "f", "g", "h", "tied"}, sd.Names())
		require.Len(t, sd.Storages(), 1)
		require.Equal(t, [][]string{{"d", "tied"}}, sd.Aliases())
		for name, x := range sd.All() {
			require.Zero(t, x.Spec().ByteOffset%module.Alignment)
			got, err := x.ReadBytes()
			require.NoError(t, err)
			if name == "tied" {
				name = "d"
			}
			require.Equal(t, content(name, sizes[name]), got, name)
		}
		require.NoError(t, sd.Close())
	})
}

func TestLoadShards(t *testing.T) {
	dir := t.TempDir()
	writeModel(t, filepath.Join(dir, "1"), nil, map[string]int64{"a": 300, "b": 512})
	writeModel(t, filepath.Join(dir, "2"), map[string]string{safetensors.TiedKey: `{"head":"a"}`}, map[string]int64{"c": 9 << 20, "d": 5})
	index := `{"weight_map":{"a":"1","b":"1","c":"2","d":"2"}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o600))
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		sd, err := module.Load(t.Context(), dev, dir, module.LoadOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c", "d", "head"}, sd.Names())
		for name, n := range map[string]int64{"a": 300, "b": 512, "c": 9 << 20, "d": 5} {
			x, _ := sd.Get(name)
			got, err := x.ReadBytes()
			require.NoError(t, err)
			require.Equal(t, content(name, n), got)
		}
		require.NoError(t, sd.Close())
	})
}

func TestLoadWithoutTensorsOrElements(t *testing.T) {
	dir := t.TempDir()
	none, empty := filepath.Join(dir, "none"), filepath.Join(dir, "empty")
	writeModel(t, none, map[string]string{"k": "v"}, nil)
	writeModel(t, empty, nil, map[string]int64{"e": 0})
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		sd, err := module.Load(t.Context(), dev, none, module.LoadOptions{})
		require.NoError(t, err)
		require.Zero(t, sd.Len())
		require.Equal(t, map[string]string{"k": "v"}, sd.Metadata)
		require.NoError(t, sd.Close())
		sd, err = module.Load(t.Context(), dev, empty, module.LoadOptions{})
		require.NoError(t, err)
		require.Equal(t, 1, sd.Len())
		require.NoError(t, sd.Close())
	})
}

func TestLoadCancelled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	// Larger than a piece of the loader, and sparse.
	text := `{"w":{"dtype":"U8","shape":[201326592],"data_offsets":[0,201326592]}}  `
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = f.Write(append([]byte{byte(len(text)), 0, 0, 0, 0, 0, 0, 0}, text...))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(192<<20+8+int64(len(text))))
	require.NoError(t, f.Close())
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		_, err := module.Load(ctx, dev, path, module.LoadOptions{Progress: func(done, total int64) {
			if done > 0 {
				cancel(stop)
			}
			require.LessOrEqual(t, done, int64(64<<20))
		}})
		require.ErrorIs(t, err, stop)
		require.ErrorContains(t, err, path)
		_, err = module.Load(ctx, dev, path, module.LoadOptions{})
		require.ErrorIs(t, err, stop)
	})
}

func TestLoadFailures(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	writeModel(t, path, nil, map[string]int64{"w": 20 << 20})
	nameless := filepath.Join(dir, "nameless")
	header := `{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`
	require.NoError(t, os.WriteFile(nameless, append(append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...), 0), 0o600))
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		_, err := module.Load(t.Context(), dev, filepath.Join(dir, "none"), module.LoadOptions{})
		require.ErrorIs(t, err, os.ErrNotExist)
		_, err = module.Load(t.Context(), dev, nameless, module.LoadOptions{})
		require.ErrorIs(t, err, module.ErrName)
		require.ErrorContains(t, err, nameless)

		// A file that becomes shorter while it is read.
		m, err := safetensors.Open(path)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(path, 1<<20))
		_, err = module.LoadModel(t.Context(), dev, m, module.LoadOptions{})
		require.ErrorIs(t, err, safetensors.ErrTruncated)
		require.ErrorContains(t, err, path)
		require.NoError(t, m.Close())
		_, err = module.LoadModel(t.Context(), dev, m, module.LoadOptions{})
		require.Error(t, err, "a closed model")
		writeModel(t, path, nil, map[string]int64{"w": 20 << 20})
	})
}

func TestLoadMemoryRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	text := `{"w":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}`
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = f.Write(append([]byte{byte(len(text)), 0, 0, 0, 0, 0, 0, 0}, text...))
	require.NoError(t, err)
	if err := f.Truncate(1<<40 + 8 + int64(len(text))); err != nil {
		t.Skip("no sparse file of 1 TiB here: ", err)
	}
	require.NoError(t, f.Close())
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		_, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
		require.ErrorIs(t, err, driver.ErrOutOfMemory)
		require.ErrorContains(t, err, path)
	})
}

func TestLoadWriteFails(t *testing.T) {
	drivertest.Leaks(t)
	path := filepath.Join(t.TempDir(), "m")
	writeModel(t, path, nil, map[string]int64{"w": 40 << 20})
	broken := errors.New("device lost")
	for _, after := range []int64{0, 1, 3} {
		dev := &plainDevice{Device: openHost(t), failWrite: broken, failAfter: after}
		_, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
		require.ErrorIs(t, err, broken)
		_, err = module.Synthesize(dev, module.Synthetic{Tensors: 1, Bytes: 4 << 20})
		require.ErrorIs(t, err, broken)
	}
}

func TestPlanLayoutOverflow(t *testing.T) {
	t.Parallel()
	info := func(name string, bytes int64) safetensors.ModelTensor {
		return safetensors.ModelTensor{
			TensorInfo: safetensors.TensorInfo{Name: name, DType: tensor.Uint8, Shape: tensor.Shape{bytes}, End: bytes},
		}
	}
	file := &safetensors.File{Path: "huge", Header: &safetensors.Header{}}
	for _, sizes := range [][2]int64{{math.MaxInt64, 0}, {math.MaxInt64 - 300, 1}, {1 << 62, 1 << 62}, {math.MaxInt64 - 1023, 256}} {
		m := &safetensors.Model{
			Files:   []*safetensors.File{file},
			Tensors: []safetensors.ModelTensor{info("a", sizes[0]), info("b", sizes[1])},
		}
		_, err := module.PlanLayout(m, 2<<20)
		require.ErrorIs(t, err, module.ErrTooLarge)
	}
}

func TestLoadSilero(t *testing.T) {
	path := testData(t, "silero_vad_16k.safetensors")
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		sd, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
		require.NoError(t, err)
		require.Equal(t, 15, sd.Len())
		require.Equal(t, int64(1238532), sd.Bytes())
		m, err := safetensors.Open(path)
		require.NoError(t, err)
		for _, info := range m.Tensors {
			want, err := io.ReadAll(m.Reader(info))
			require.NoError(t, err)
			x, ok := sd.Get(info.Name)
			require.True(t, ok)
			got, err := x.ReadBytes()
			require.NoError(t, err)
			require.Equal(t, want, got, info.Name)
		}
		require.NoError(t, m.Close())
		require.NoError(t, sd.Close())
	})
}
