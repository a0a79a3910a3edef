package module_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// slab returns all bytes of a state dict's only storage.
func slab(t *testing.T, sd *module.StateDict) []byte {
	t.Helper()
	storages := sd.Storages()
	require.Len(t, storages, 1)
	data := make([]byte, storages[0].Bytes())
	_, err := storages[0].Memory().ReadAt(data, 0)
	require.NoError(t, err)
	return data
}

// The slab is a file that a strict reader opens, with the names, bytes and metadata of the model.
func TestFileLayout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	sizes := map[string]int64{"a": 1000, "b": 9 << 20, "c": 24, "d": 0}
	writeModel(t, path, map[string]string{"k": "v", safetensors.TiedKey: `{"z":"a"}`}, sizes)
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{FileLayout: true})
		require.NoError(t, err)
		defer sd.Close()
		data := slab(t, sd)
		h, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err)
		require.Equal(t, "v", h.Metadata["k"])
		require.Len(t, h.Tensors, len(sizes))
		for _, info := range h.Tensors {
			want := content(info.Name, sizes[info.Name])
			require.True(t, bytes.Equal(want, data[h.DataOffset+info.Begin:][:info.Bytes()]), info.Name)
			x, found := sd.Get(info.Name)
			require.True(t, found)
			got, err := x.ReadBytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), info.Name)
		}
		a, _ := sd.Get("a")
		z, found := sd.Get("z")
		require.True(t, found)
		require.Equal(t, a.Spec().ByteOffset, z.Spec().ByteOffset)
	})
}

func TestFileLayoutRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "m.safetensors")
	writeModel(t, path, nil, map[string]int64{"a": 9})
	dev := openHost(t)
	ctx := context.Background()
	_, err := module.Load(ctx, dev, path, module.LoadOptions{FileLayout: true})
	require.ErrorIs(t, err, module.ErrLayout)
	_, err = module.Load(ctx, dev, path, module.LoadOptions{FileLayout: true, Only: func(string) bool { return true }})
	require.ErrorIs(t, err, module.ErrLayout)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	writeModel(t, path, nil, map[string]int64{"a": 8})
	_, err = module.Load(ended, dev, path, module.LoadOptions{FileLayout: true})
	require.ErrorIs(t, err, context.Canceled)
	writeModel(t, path, nil, nil)
	sd, err := module.Load(ctx, dev, path, module.LoadOptions{FileLayout: true})
	require.NoError(t, err)
	require.Zero(t, sd.Len())
	require.NoError(t, sd.Close())
}

// writeGGUF writes a GGUF file with two tensors, or without tensors if the names are empty.
func writeGGUF(t *testing.T, path string, names [2]string, metadata gguf.Metadata) {
	t.Helper()
	infos := []gguf.TensorInfo{
		{Name: names[0], DType: tensor.Q8_0, Shape: tensor.Shape{2, 64}}, {Name: names[1], DType: tensor.Float32, Shape: tensor.Shape{3}},
	}
	if names == [2]string{} {
		infos = nil
	}
	h, err := gguf.NewHeader(infos, metadata)
	require.NoError(t, err)
	var file bytes.Buffer
	require.NoError(t, gguf.Write(&file, h, func(w io.Writer, info gguf.TensorInfo) error {
		_, err := w.Write(content(info.Name, info.Bytes()))
		return err
	}))
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
}

// The slab of a GGUF model is the file, and its tensors are views of it.
func TestLoadGGUF(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	writeGGUF(t, path, [2]string{"q", "f"}, gguf.Metadata{{Key: "general.name", Value: "x"}, {Key: "list", Value: []int32{1}}})
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		last := int64(-1)
		sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{Progress: func(done, total int64) {
			require.Equal(t, int64(len(want)), total)
			last = done
		}})
		require.NoError(t, err)
		defer sd.Close()
		require.Equal(t, int64(len(want)), last)
		require.Equal(t, map[string]string{"general.name": "x"}, sd.Metadata)
		data := slab(t, sd)
		require.Equal(t, want, data[:len(want)])
		require.Equal(t, make([]byte, len(data)-len(want)), data[len(want):])
		q, _ := sd.Get("q")
		require.Equal(t, tensor.Q8_0, q.DType())
		got, err := q.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, content("q", 136), got)
	})
	dev := openHost(t)
	sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{Only: func(name string) bool { return name == "f" }})
	require.NoError(t, err)
	require.Equal(t, 1, sd.Len())
	require.NoError(t, sd.Close())
	_, err = module.Load(context.Background(), dev, path, module.LoadOptions{DType: func(string, tensor.DType) tensor.DType { return tensor.Float32 }})
	require.ErrorIs(t, err, tensor.ErrDType)
	require.ErrorIs(t, module.Save(context.Background(), filepath.Join(t.TempDir(), "m.safetensors"), mustLoad(t, dev, path), module.SaveOptions{}), safetensors.ErrDType)
}

func mustLoad(t *testing.T, dev driver.Device, path string) *module.StateDict {
	t.Helper()
	sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sd.Close()) })
	return sd
}

// splitOf returns the metadata of a part of a split model.
func splitOf(no, count, tensors int) gguf.Metadata {
	return gguf.Metadata{{Key: "split.no", Value: uint16(no)}, {Key: "split.count", Value: uint16(count)}, {Key: "split.tensors.count", Value: int32(tensors)}}
}

// A part of a split model opens all parts, and parts that do not belong together are refused.
func TestLoadSplitGGUF(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	part := func(n int) string { return filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", n+1)) }
	writeGGUF(t, part(0), [2]string{"a", "b"}, splitOf(0, 2, 4))
	dev := openHost(t)
	_, err := module.Load(context.Background(), dev, part(0), module.LoadOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
	writeGGUF(t, part(1), [2]string{"c", "d"}, splitOf(1, 2, 4))
	sd, err := module.Load(context.Background(), dev, part(1), module.LoadOptions{})
	require.NoError(t, err)
	require.Equal(t, 4, sd.Len())
	require.Len(t, sd.Storages(), 2)
	require.NoError(t, sd.Close())
	writeGGUF(t, part(1), [2]string{"c", "a"}, splitOf(1, 2, 4))
	_, err = module.OpenModel(part(0))
	require.ErrorIs(t, err, safetensors.ErrDuplicateName)
	none := func(n int) gguf.Metadata { return slices.Delete(splitOf(1, 2, 4), n, n+1) }
	for _, c := range []struct {
		name          string
		first, second gguf.Metadata
		names         [2]string
		reasons       []string
	}{
		{"the same number twice", splitOf(0, 2, 4), splitOf(0, 2, 4), [2]string{"c", "d"}, []string{"part 1 of 2", "part 2 of 2"}},
		{"no number", splitOf(0, 2, 4), none(0), [2]string{"c", "d"}, []string{"part unknown"}},
		{"another number of parts", splitOf(0, 2, 4), splitOf(1, 3, 4), [2]string{"c", "d"}, []string{"part 2 of 3"}},
		{"the name has another number of parts", splitOf(0, 3, 4), splitOf(1, 3, 4), [2]string{"c", "d"}, []string{"3 parts", "name 2"}},
		{"too few tensors", splitOf(0, 2, 6), splitOf(1, 2, 6), [2]string{"c", "d"}, []string{"4 tensors", "model 6"}},
		{"too many tensors", splitOf(0, 2, 3), splitOf(1, 2, 3), [2]string{"c", "d"}, []string{"4 tensors", "model 3"}},
		{"a part without tensors", splitOf(0, 2, 4), splitOf(1, 2, 4), [2]string{}, []string{"2 tensors", "model 4"}},
		{"parts of two models", splitOf(0, 2, 4), splitOf(1, 2, 5), [2]string{"c", "d"}, []string{"5 tensors", "with 4"}},
		{"no number of tensors", splitOf(0, 2, 4)[:2], splitOf(1, 2, 4), [2]string{"c", "d"}, []string{"split.tensors.count"}},
	} {
		writeGGUF(t, part(0), [2]string{"a", "b"}, c.first)
		writeGGUF(t, part(1), c.names, c.second)
		_, err = module.OpenModel(part(0))
		require.ErrorIs(t, err, gguf.ErrSplit, c.name)
		require.ErrorContains(t, err, dir, c.name)
		for _, reason := range c.reasons {
			require.ErrorContains(t, err, reason, c.name)
		}
	}
	renamed := filepath.Join(dir, "renamed.gguf")
	writeGGUF(t, renamed, [2]string{"c", "d"}, splitOf(1, 2, 4))
	_, err = module.OpenModel(renamed)
	require.ErrorIs(t, err, gguf.ErrSplit)
	writeGGUF(t, part(1), [2]string{"c", "d"}, nil)
	sd = mustLoad(t, dev, part(1))
	require.Equal(t, 2, sd.Len(), "without split.count it is a whole model, as for llama.cpp")
}

// Each file of a model has a slab that is the file, also a file without tensors: it has the architecture and the tokenizer.
func TestLoadGGUFWithoutTensors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dev := openHost(t)
	equal := func(s *tensor.Storage, path string) {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		data := make([]byte, s.Bytes())
		_, err = s.Memory().ReadAt(data, 0)
		require.NoError(t, err)
		require.Equal(t, want, data[:len(want)])
	}
	parts := []string{filepath.Join(dir, "m-00001-of-00003.gguf"), filepath.Join(dir, "m-00002-of-00003.gguf"), filepath.Join(dir, "m-00003-of-00003.gguf")}
	writeGGUF(t, parts[0], [2]string{}, append(splitOf(0, 3, 4), gguf.Entry{Key: "general.architecture", Value: "llama"}))
	writeGGUF(t, parts[1], [2]string{"a", "b"}, splitOf(1, 3, 4))
	writeGGUF(t, parts[2], [2]string{"c", "d"}, splitOf(2, 3, 4))
	sd, err := module.Load(context.Background(), dev, parts[0], module.LoadOptions{})
	require.NoError(t, err)
	manifest, storages := sd.Manifest()
	attached, err := module.FromManifest(manifest, storages)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	require.NoError(t, attached.Rename("a", "e")) // the tensors leave the views
	x, ok := attached.Take("e")
	require.True(t, ok)
	require.NoError(t, attached.Set("a", x))
	require.Len(t, attached.Storages(), 3)
	for i, s := range attached.Storages() {
		equal(s, parts[i])
	}
	require.NoError(t, attached.Close())

	vocabulary := filepath.Join(dir, "vocabulary.gguf")
	writeGGUF(t, vocabulary, [2]string{}, gguf.Metadata{{Key: "tokenizer.ggml.tokens", Value: []string{"a", "b"}}})
	sd = mustLoad(t, dev, vocabulary)
	require.Zero(t, sd.Len())
	require.Len(t, sd.Storages(), 1)
	equal(sd.Storages()[0], vocabulary)
}
