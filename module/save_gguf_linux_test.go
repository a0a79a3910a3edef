package module_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// attach returns the state dict that another process sees: the manifest and the storages.
func attach(t *testing.T, sd *module.StateDict) *module.StateDict {
	t.Helper()
	attached, err := module.FromManifest(sd.Manifest())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, attached.Close()) })
	return attached
}

// saved returns the bytes of a file that Save wrote.
func saved(t *testing.T, sd *module.StateDict, name string, opts module.SaveOptions) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, module.Save(t.Context(), path, sd, opts))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// requireSame compares the names, types, shapes and bytes of all tensors.
func requireSame(t *testing.T, want, got *module.StateDict) {
	t.Helper()
	require.Equal(t, want.Names(), got.Names())
	for name, x := range want.All() {
		y, _ := got.Get(name)
		require.Equal(t, x.DType(), y.DType(), name)
		require.Equal(t, x.Shape(), y.Shape(), name)
		a, err := x.ReadBytes()
		require.NoError(t, err)
		b, err := y.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, a, b, name)
	}
}

func headerOfGGUF(t *testing.T, data []byte) *gguf.Header {
	t.Helper()
	h, err := gguf.ReadHeader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	return h
}

// allTypes is the metadata of a file with each type of value.
func allTypes() gguf.Metadata {
	return gguf.Metadata{
		{Key: "general.architecture", Value: "llama"}, {Key: "u8", Value: uint8(1)}, {Key: "i8", Value: int8(-1)}, {Key: "u16", Value: uint16(2)},
		{Key: "i16", Value: int16(-2)}, {Key: "u32", Value: uint32(3)}, {Key: "i32", Value: int32(-3)}, {Key: "u64", Value: uint64(1<<63 + 1)},
		{Key: "i64", Value: int64(-4)}, {Key: "f32", Value: float32(0.1)}, {Key: "f64", Value: 0.1}, {Key: "yes", Value: true},
		{Key: "list", Value: []string{"a", ""}}, {Key: "numbers", Value: []int32{1, 2}}, {Key: "empty", Value: []bool{}},
		{Key: "general.alignment", Value: uint32(64)}, {Key: "latin", Value: "\xe9"},
	}
}

// What was loaded from a GGUF file is written as the same bytes, under any name but .safetensors, also by another process and
// after the file was decoded from memory.
func TestSaveGGUF(t *testing.T) {
	other := filepath.Join(t.TempDir(), "m.gguf")
	writeGGUF(t, other, [2]string{"q", "f"}, allTypes())
	for _, path := range []string{"gguf/testdata/quantised.gguf", other} {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		bothPaths(t, func(t *testing.T, dev driver.Device) {
			loaded := mustLoad(t, dev, path)
			alias := loaded.Alias()
			defer alias.Close()
			for _, sd := range []*module.StateDict{loaded, attach(t, loaded), alias} {
				for _, name := range []string{"m.gguf", "m", "m.bin"} {
					last := [2]int64{-1, -1}
					got := saved(t, sd, name, module.SaveOptions{Progress: func(done, total int64) { last = [2]int64{done, total} }})
					require.Equal(t, want, got)
					require.Equal(t, last[0], last[1])
				}
				var out bytes.Buffer
				require.NoError(t, module.SaveTo(t.Context(), &out, sd, module.SaveOptions{}))
				require.Equal(t, want, out.Bytes())
				data, err := module.Encode(t.Context(), sd, module.SaveOptions{})
				require.NoError(t, err)
				require.Equal(t, want, data)
				again, err := module.Decode(t.Context(), dev, data, module.LoadOptions{})
				require.NoError(t, err)
				requireSame(t, loaded, again)
				require.NoError(t, again.Close())
			}
		})
	}
}

// The reader of the gguf package finds the same metadata, types and bytes in the file and its copy.
func TestSaveGGUFReadByPython(t *testing.T) {
	t.Parallel()
	python := os.Getenv("SHAREDTENSOR_GGUF_PYTHON")
	drivertest.Needs(t, "gguf-py", python != "", "SHAREDTENSOR_GGUF_PYTHON names no Python with the gguf package")
	read := func(path string) string {
		out, err := exec.CommandContext(t.Context(), python, "testdata/read_gguf.py", path).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	dev := openHost(t)
	other := filepath.Join(t.TempDir(), "m.gguf")
	writeGGUF(t, other, [2]string{"q", "f"}, slices.DeleteFunc(allTypes(), func(e gguf.Entry) bool { return e.Key == "latin" || e.Key == "empty" }))
	for _, path := range []string{"gguf/testdata/quantised.gguf", other} {
		copied := filepath.Join(t.TempDir(), "copy.gguf")
		require.NoError(t, module.Save(t.Context(), copied, mustLoad(t, dev, path), module.SaveOptions{}))
		require.JSONEq(t, read(path), read(copied))
		// A part of the file has the same metadata.
		part, err := module.Load(t.Context(), dev, path, module.LoadOptions{Only: func(string) bool { return true }})
		require.NoError(t, err)
		require.NoError(t, module.Save(t.Context(), copied, part, module.SaveOptions{}))
		require.JSONEq(t, read(path), read(copied))
		require.NoError(t, part.Close())
	}
}

// A split model becomes one file, with the metadata of all parts but the numbers of the split.
func TestSaveSplitGGUF(t *testing.T) {
	t.Parallel()
	dir, dev := t.TempDir(), openHost(t)
	parts := []string{filepath.Join(dir, "m-00001-of-00003.gguf"), filepath.Join(dir, "m-00002-of-00003.gguf"), filepath.Join(dir, "m-00003-of-00003.gguf")}
	writeGGUF(t, parts[0], [2]string{"a", "b"}, append(splitOf(0, 3, 4), gguf.Entry{Key: "general.architecture", Value: "llama"}))
	writeGGUF(t, parts[1], [2]string{}, append(splitOf(1, 3, 4), gguf.Entry{Key: "general.architecture", Value: "other"}, gguf.Entry{Key: "two", Value: []uint8{2}}))
	writeGGUF(t, parts[2], [2]string{"c", "d"}, splitOf(2, 3, 4))
	sd := attach(t, mustLoad(t, dev, parts[0]))
	data := saved(t, sd, "m.gguf", module.SaveOptions{})
	h := headerOfGGUF(t, data)
	require.Equal(t, gguf.Metadata{{Key: "general.architecture", Value: "llama"}, {Key: "two", Value: []uint8{2}}}, h.Metadata)
	again, err := module.Decode(t.Context(), dev, data, module.LoadOptions{})
	require.NoError(t, err)
	requireSame(t, sd, again)
	require.NoError(t, again.Close())
	file, err := os.Open(parts[1])
	require.NoError(t, err)
	defer file.Close()
	info, err := file.Stat()
	require.NoError(t, err)
	_, err = module.LoadFrom(t.Context(), dev, file, info.Size(), module.LoadOptions{})
	require.ErrorIs(t, err, gguf.ErrSplit)
}

// Changed metadata keeps the types of the file, and changed tensors are written.
func TestSaveChangedGGUF(t *testing.T) {
	t.Parallel()
	path, dev := filepath.Join(t.TempDir(), "m.gguf"), openHost(t)
	writeGGUF(t, path, [2]string{"q", "f"}, allTypes())
	sd := mustLoad(t, dev, path)
	changes := map[string]string{
		"u8": "200", "i8": "-100", "u16": "60000", "i16": "-30000", "u32": "4000000000", "i32": "-2000000000", "u64": "18446744073709551615",
		"i64": "-9000000000000000000", "f32": "0.25", "f64": "1e300", "yes": "false", "general.architecture": "qwen", "new": "text",
	}
	maps.Copy(sd.Metadata, changes)
	delete(sd.Metadata, "latin")
	require.NoError(t, sd.Rename("q", "renamed"))
	set(t, dev, sd, "more", 1, 2)
	tie(t, sd, "tied", "more")
	data := saved(t, sd, "m", module.SaveOptions{Metadata: map[string]string{"u8": "7"}})
	h := headerOfGGUF(t, data)
	require.Equal(t, gguf.Metadata{
		{Key: "general.architecture", Value: "qwen"}, {Key: "u8", Value: uint8(7)}, {Key: "i8", Value: int8(-100)}, {Key: "u16", Value: uint16(60000)},
		{Key: "i16", Value: int16(-30000)}, {Key: "u32", Value: uint32(4000000000)}, {Key: "i32", Value: int32(-2000000000)}, {Key: "u64", Value: uint64(1<<64 - 1)},
		{Key: "i64", Value: int64(-9000000000000000000)}, {Key: "f32", Value: float32(0.25)}, {Key: "f64", Value: 1e300}, {Key: "yes", Value: false},
		{Key: "list", Value: []string{"a", ""}}, {Key: "numbers", Value: []int32{1, 2}}, {Key: "empty", Value: []bool{}},
		{Key: "general.alignment", Value: uint32(64)}, {Key: "new", Value: "text"}, {Key: safetensors.TiedKey, Value: `{"tied":"more"}`},
	}, h.Metadata)
	again, err := module.Decode(t.Context(), dev, data, module.LoadOptions{})
	require.NoError(t, err)
	defer again.Close()
	require.Equal(t, []string{"renamed", "f", "more", "tied"}, again.Names())
	require.Equal(t, [][]string{{"more", "tied"}}, again.Aliases())
	requireSame(t, sd, again)
}

// Selected and converted tensors keep the metadata of their file, but not in another process.
func TestSavePartOfGGUF(t *testing.T) {
	t.Parallel()
	path, dev := filepath.Join(t.TempDir(), "m.gguf"), openHost(t)
	writeGGUF(t, path, [2]string{"q", "f"}, allTypes())
	half := func(_ string, dt tensor.DType) tensor.DType {
		if dt == tensor.Float32 {
			return tensor.Float16
		}
		return dt // block-quantised tensors are copied
	}
	part, err := module.Load(t.Context(), dev, path, module.LoadOptions{DType: half})
	require.NoError(t, err)
	defer part.Close()
	whole := mustLoad(t, dev, path)
	for _, name := range []string{"q", "f"} {
		a, _ := part.Get(name)
		b, _ := whole.Get(name)
		require.Equal(t, half("", b.DType()), a.DType())
	}
	h := headerOfGGUF(t, saved(t, part, "m", module.SaveOptions{}))
	require.Equal(t, allTypes(), h.Metadata)
	require.Equal(t, tensor.Float16, h.Tensors[1].DType)
	alias := part.Alias()
	defer alias.Close()
	h = headerOfGGUF(t, saved(t, alias, "m", module.SaveOptions{}))
	require.Equal(t, allTypes(), h.Metadata)
	err = module.Save(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), attach(t, part), module.SaveOptions{})
	require.ErrorIs(t, err, module.ErrFormat)
	require.ErrorContains(t, err, "load the whole file")
}

// A state dict of another origin is written as GGUF under a name that ends in .gguf, or with the option.
func TestSaveOtherAsGGUF(t *testing.T) {
	t.Parallel()
	dev, sd := openHost(t), module.NewStateDict()
	defer sd.Close()
	set(t, dev, sd, "a", 1, 2, 3)
	sd.Metadata = map[string]string{"b": "2", "a": "1"}
	require.NotEqual(t, "GGUF", string(saved(t, sd, "m", module.SaveOptions{})[:4]))
	require.Equal(t, "GGUF", string(saved(t, sd, "m.safetensors", module.SaveOptions{Format: module.FormatGGUF})[:4]))
	h := headerOfGGUF(t, saved(t, sd, "m.gguf", module.SaveOptions{}))
	require.Equal(t, gguf.Metadata{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}}, h.Metadata)
	require.Equal(t, []gguf.TensorInfo{{Name: "a", DType: tensor.Float32, Shape: tensor.Shape{3}}}, h.Tensors)

	// Tensors that begin with the first bytes of a GGUF file do not make a GGUF file.
	x, err := tensor.FromSlice(dev, tensor.Shape{32}, []byte("GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	require.NoError(t, err)
	looks := module.NewStateDict()
	defer looks.Close()
	require.NoError(t, looks.Set("x", x))
	require.NotEqual(t, "GGUF", string(saved(t, looks, "m", module.SaveOptions{})[:4]))
}

// What a format cannot represent is an error with advice, and the file is unchanged.
func TestSaveRefusesFormats(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	one := func(name string, dt tensor.DType, shape tensor.Shape) *module.StateDict {
		sd := module.NewStateDict()
		t.Cleanup(func() { require.NoError(t, sd.Close()) })
		x, err := tensor.Zeros(dev, dt, shape)
		require.NoError(t, err)
		require.NoError(t, sd.Set(name, x))
		return sd
	}
	source := filepath.Join(t.TempDir(), "m.gguf")
	writeGGUF(t, source, [2]string{"q", "f"}, allTypes())
	changed := func(key, text string) *module.StateDict {
		sd := mustLoad(t, dev, source)
		sd.Metadata[key] = text
		return sd
	}
	long := string(bytes.Repeat([]byte("n"), 64))
	for name, c := range map[string]struct {
		sd     *module.StateDict
		path   string
		opts   module.SaveOptions
		want   error
		advice string
	}{
		"blocks":           {mustLoad(t, dev, source), "m.safetensors", module.SaveOptions{}, safetensors.ErrDType, ".gguf"},
		"uint8":            {one("x", tensor.Uint8, tensor.Shape{1}), "m.gguf", module.SaveOptions{}, gguf.ErrType, ".safetensors"},
		"bool":             {one("x", tensor.Bool, tensor.Shape{1}), "m.gguf", module.SaveOptions{}, gguf.ErrType, ".safetensors"},
		"five dimensions":  {one("x", tensor.Int8, tensor.Shape{1, 1, 1, 1, 1}), "m.gguf", module.SaveOptions{}, gguf.ErrShape, ".safetensors"},
		"a long name":      {one(long, tensor.Int8, tensor.Shape{1}), "m.gguf", module.SaveOptions{}, gguf.ErrName, ".safetensors"},
		"Python's ties":    {mustLoad(t, dev, source), "m", module.SaveOptions{PythonTies: true}, module.ErrFormat, "load_model"},
		"no number":        {changed("u8", "300"), "m", module.SaveOptions{}, module.ErrFormat, "uint8"},
		"no bool":          {changed("yes", "maybe"), "m", module.SaveOptions{}, module.ErrFormat, "bool"},
		"text for a list":  {changed("list", "a"), "m", module.SaveOptions{}, module.ErrFormat, "array"},
		"a bad alignment":  {changed("general.alignment", "48"), "m", module.SaveOptions{}, gguf.ErrAlignment, "power of two"},
		"an unknown one":   {mustLoad(t, dev, source), "m", module.SaveOptions{Format: 9}, module.ErrFormat, "not known"},
		"the other format": {mustLoad(t, dev, source), "m.gguf", module.SaveOptions{Format: module.FormatSafetensors}, safetensors.ErrDType, ".gguf"},
	} {
		path := filepath.Join(t.TempDir(), c.path)
		require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
		err := module.Save(t.Context(), path, c.sd, c.opts)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.advice, name)
		require.ErrorContains(t, err, path, name)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(data), name)
	}
	dir := filepath.Join(t.TempDir(), "shards")
	require.ErrorIs(t, module.SaveSharded(t.Context(), dir, mustLoad(t, dev, source), module.ShardOptions{}), safetensors.ErrDType)
	require.ErrorIs(t, module.SaveSharded(t.Context(), dir, mustLoad(t, dev, source), module.ShardOptions{SaveOptions: module.SaveOptions{Format: module.FormatGGUF}}), module.ErrFormat)
}
