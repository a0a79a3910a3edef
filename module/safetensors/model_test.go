package safetensors

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// put writes files into a new directory.
func put(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// bytesOf returns a file with the named one-byte tensors.
func bytesOf(t *testing.T, metadata map[string]string, names ...string) string {
	var infos []TensorInfo
	for _, name := range names {
		infos = append(infos, info(name, tensor.Uint8, 1))
	}
	h, err := NewHeader(infos, metadata)
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, Write(&out, h, letters))
	return out.String()
}

func TestOpen(t *testing.T) {
	drivertest.Leaks(t)
	single := bytesOf(t, nil, "a")
	index := `{"metadata":{"total_size":3,"note":{"x":[1]}},"weight_map":{"c":"2","a":"1","b":"2"}}`
	shards := map[string]string{
		"1": bytesOf(t, map[string]string{"format": "pt", "x": "1"}, "a"),
		"2": bytesOf(t, map[string]string{"y": "2", "x": "2"}, "b", "c"),
	}
	with := func(name, text string) map[string]string {
		return map[string]string{"1": shards["1"], "2": shards["2"], name: text}
	}
	for _, c := range []struct {
		name, path string
		files      map[string]string
		tensors    int
		sharded    bool
	}{
		{"file", "x.bin", map[string]string{"x.bin": single}, 1, false},
		{"index", "i.json", with("i.json", index), 3, true},
		{"directory with a model", "", map[string]string{"model.safetensors": single, "other.safetensors": single}, 1, false},
		{"directory with an index", "", with("model.safetensors.index.json", index), 3, true},
		{"directory with both", "", map[string]string{"model.safetensors": single, "model.safetensors.index.json": ""}, 1, false},
		{"directory with one file", "", map[string]string{"vad.safetensors": single, ".x.safetensors": "", "README": ""}, 1, false},
		{"directory with one index", "", with("a.safetensors.index.json", index), 3, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Open(filepath.Join(put(t, c.files), c.path))
			require.NoError(t, err)
			require.Len(t, m.Tensors, c.tensors)
			require.Equal(t, int64(c.tensors), m.Bytes())
			for _, tensor := range m.Tensors {
				found, ok := m.Lookup(tensor.Name)
				require.True(t, ok)
				require.Equal(t, tensor, found)
				data, err := io.ReadAll(m.Reader(tensor))
				require.NoError(t, err)
				require.Equal(t, tensor.Name, string(data))
			}
			_, ok := m.Lookup("none")
			require.False(t, ok)
			if c.sharded {
				require.Equal(t, int64(3), m.Index.TotalSize)
				require.Equal(t, map[string]string{"format": "pt", "x": "1", "y": "2"}, m.Metadata)
			}
			require.NoError(t, m.Close())
			require.NoError(t, m.Close())
		})
	}
}

// NewShards builds one model from readers, and refuses what Open refuses.
func TestNewShards(t *testing.T) {
	t.Parallel()
	shard := func(path, text string) Shard {
		return Shard{Path: path, Source: strings.NewReader(text), Bytes: int64(len(text))}
	}
	one, two := shard("s3://b/1", bytesOf(t, nil, "a")), shard("s3://b/2", bytesOf(t, map[string]string{TiedKey: `{"t":"a"}`}, "b", "c"))
	index, err := ParseIndex([]byte(`{"weight_map":{"a":"1","b":"2","c":"2"}}`))
	require.NoError(t, err)
	for _, index := range []*Index{nil, index} {
		m, err := NewShards("s3://b", index, []Shard{one, two})
		require.NoError(t, err)
		require.Len(t, m.Tensors, 3)
		require.Equal(t, []Tie{{Name: "t", Kept: "a"}}, m.Ties)
		data, err := io.ReadAll(m.Reader(m.Tensors[1]))
		require.NoError(t, err)
		require.Equal(t, "b", string(data))
		require.NoError(t, m.Close())
	}
	for _, c := range []struct {
		index  *Index
		shards []Shard
		want   error
	}{
		{index, []Shard{one}, ErrMissingShards},
		{index, []Shard{two, one}, ErrMissingShards},
		{nil, []Shard{one, shard("3", bytesOf(t, nil, "a"))}, ErrDuplicateName},
		{index, []Shard{one, shard("2", bytesOf(t, nil, "b", "d"))}, ErrNotInShard},
		{nil, []Shard{shard("x", "{}")}, ErrTruncated},
	} {
		_, err := NewShards("s3://b", c.index, c.shards)
		require.ErrorIs(t, err, c.want)
	}
}

func TestOpenRefuses(t *testing.T) {
	drivertest.Leaks(t)
	weights := func(text string) string { return `{"weight_map":` + text + `}` }
	a, ab := bytesOf(t, nil, "a"), bytesOf(t, nil, "a", "b")
	for _, c := range []struct {
		name  string
		index string
		files map[string]string
		want  error
		names []string
	}{
		{"index is not JSON", `{"weight_map":{`, nil, ErrIndexJSON, []string{"m.json"}},
		{"index is an array", `[]`, nil, ErrType, []string{"m.json"}},
		{"index is not UTF-8", "{\"\xff\":1}", nil, ErrUTF8, []string{"m.json"}},
		{"garbage behind", weights(`{}`) + "x", nil, ErrTrailingJSON, []string{"m.json"}},
		{"deep nesting", `{"x":` + strings.Repeat("[", 1e5), nil, ErrNesting, []string{"m.json"}},
		{"garbage for a value", `{"x":nul}`, nil, ErrIndexJSON, []string{"m.json"}},
		{"no weight_map", `{"metadata":{}}`, nil, ErrMissingKey, []string{"weight_map"}},
		{"weight_map twice", `{"weight_map":{},"weight_map":{}}`, nil, ErrDuplicateKey, []string{"weight_map"}},
		{"name twice", weights(`{"a":"1","a":"1"}`), nil, ErrDuplicateKey, []string{`"a"`}},
		{"weight_map is a string", weights(`"1"`), nil, ErrType, []string{"m.json"}},
		{"shard is a number", weights(`{"a":1}`), nil, ErrType, []string{`"a"`}},
		{"shard above", weights(`{"a":"../1"}`), nil, ErrShardName, []string{`"a"`, "../1"}},
		{"shard is ..", weights(`{"a":".."}`), nil, ErrShardName, []string{`"a"`}},
		{"shard is absolute", weights(`{"a":"/etc/passwd"}`), nil, ErrShardName, []string{`"a"`}},
		{"shard with a backslash", weights(`{"a":"..\\1"}`), nil, ErrShardName, []string{`"a"`}},
		{"shard with a zero", weights(`{"a":"1\u0000"}`), nil, ErrShardName, []string{`"a"`}},
		{"shard without a name", weights(`{"a":""}`), nil, ErrShardName, []string{`"a"`}},
		{"git-lfs pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", nil, ErrForeignFormat, []string{"m.json", "git lfs pull", "not an index"}},
		{"web page", "<!DOCTYPE html><html>", nil, ErrForeignFormat, []string{"m.json", "a web page"}},
		{"source code", "package main\n\nfunc main() {}\n", nil, ErrForeignFormat, []string{"m.json", "a text file"}},
		{"no such shard", weights(`{"a":"1","b":"2"}`), map[string]string{"1": a}, os.ErrNotExist, []string{"2"}},
		{"bad shard", weights(`{"a":"1"}`), map[string]string{"1": "short"}, ErrTruncated, []string{"1"}},
		{"not in the shard", weights(`{"a":"1","b":"1"}`), map[string]string{"1": a}, ErrNotInShard, []string{"m.json", `"b"`}},
		{"in another shard", weights(`{"a":"1","b":"2","c":"2"}`), map[string]string{"1": ab, "2": bytesOf(t, nil, "c")},
			ErrNotInShard, []string{`"b"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := put(t, c.files)
			path := filepath.Join(dir, "m.json")
			require.NoError(t, os.WriteFile(path, []byte(c.index), 0o600))
			_, err := Open(path)
			require.ErrorIs(t, err, c.want)
			for _, name := range c.names {
				require.ErrorContains(t, err, name)
			}
			require.ErrorContains(t, err, dir)
		})
	}
}

func TestOpenRefusesDirectories(t *testing.T) {
	t.Parallel()
	dir := put(t, map[string]string{"README": ""})
	_, err := Open(dir)
	require.ErrorIs(t, err, ErrNoModel)
	require.ErrorContains(t, err, dir)
	_, err = Open(put(t, map[string]string{"a.safetensors": "", "b.safetensors": ""}))
	require.ErrorIs(t, err, ErrAmbiguous)
	_, err = Open(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "model.safetensors"), 0o700))
	_, err = Open(dir)
	require.ErrorIs(t, err, ErrNotRegular)
}

func TestIndexTooLarge(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "m.json")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(MaxHeaderBytes+1))
	require.NoError(t, f.Close())
	_, err = Open(path)
	require.ErrorIs(t, err, ErrIndexTooLarge)
}

func TestBytesOfSparseShards(t *testing.T) {
	t.Parallel()
	// Two sparse files of 4 EiB each would overflow the sum; file systems that allow them are rare.
	dir := put(t, map[string]string{"m.json": `{"weight_map":{"a":"1","b":"2"}}`})
	for shard, name := range map[string]string{"1": "a", "2": "b"} {
		text := `{"` + name + `":{"dtype":"U8","shape":[4611686018427387904],"data_offsets":[0,4611686018427387904]}}`
		path := filepath.Join(dir, shard)
		require.NoError(t, os.WriteFile(path, file(text, 0), 0o600))
		if err := os.Truncate(path, 1<<62+8+int64(len(text))); err != nil {
			t.Skip("this file system has no files of 4 EiB: ", err)
		}
	}
	_, err := Open(filepath.Join(dir, "m.json"))
	require.ErrorIs(t, err, ErrOverflow)
}

func TestSilero(t *testing.T) {
	t.Parallel()
	m, err := Open(testData(t, "silero_vad_16k.safetensors"))
	require.NoError(t, err)
	defer m.Close()
	require.Len(t, m.Tensors, 15)
	require.Equal(t, int64(1238532), m.Bytes())
	w, ok := m.Lookup("conv1.weight")
	require.True(t, ok)
	require.Equal(t, tensor.Shape{128, 129, 3}, w.Shape)
	require.Equal(t, tensor.Float32, w.DType)
}

// testData returns a file outside the repository, or skips the test.
func testData(t testing.TB, name string) string {
	dir := os.Getenv("SHAREDTENSOR_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no test data (set SHAREDTENSOR_TESTDATA): %v", err)
	}
	return path
}
