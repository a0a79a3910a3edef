package safetensors

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// letters is a source that fills each tensor with the first letter of its name.
func letters(w io.Writer, t TensorInfo) error {
	_, err := w.Write(bytes.Repeat([]byte{t.Name[0]}, int(t.Bytes())))
	return err
}

func info(name string, dt tensor.DType, shape ...int64) TensorInfo {
	return TensorInfo{Name: name, DType: dt, Shape: append(tensor.Shape{}, shape...)}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	h, err := NewHeader([]TensorInfo{
		info("b", tensor.Float32, 2), info("a", tensor.Float32), info("z", tensor.Int64, 1), info("e", tensor.Uint8, 0),
		info("q\"\\\x01", tensor.Float4E2M1FN, 2),
	}, map[string]string{"z": "1", "format": "pt"})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, Write(&out, h, letters))
	want := `{"__metadata__":{"format":"pt","z":"1"},` +
		`"z":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},` +
		`"a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},` +
		`"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},` +
		`"e":{"dtype":"U8","shape":[0],"data_offsets":[20,20]},` +
		`"q\"\\\u0001":{"dtype":"F4","shape":[2],"data_offsets":[20,21]}}`
	want += strings.Repeat(" ", (8-len(want)%8)%8)
	require.Equal(t, want, out.String()[8:h.DataOffset])
	require.Equal(t, "zzzzzzzzaaaabbbbbbbbq", out.String()[h.DataOffset:])
	require.Equal(t, h.FileBytes, int64(out.Len()))
	again, err := read(out.Bytes())
	require.NoError(t, err)
	require.Equal(t, h, again)
}

func TestWriteEveryDType(t *testing.T) {
	t.Parallel()
	var infos []TensorInfo
	for _, dt := range tensor.DTypes() {
		name, err := Name(dt)
		if dt == tensor.Complex128 {
			require.ErrorIs(t, err, ErrDType)
			continue
		}
		require.NoError(t, err)
		back, err := ParseDType(name)
		require.NoError(t, err)
		require.Equal(t, dt, back)
		infos = append(infos, info(name, dt, 8))
	}
	h, err := NewHeader(infos, nil)
	require.NoError(t, err)
	text, err := h.Encode()
	require.NoError(t, err)
	again, err := ReadHeader(headerOnly{text}, h.FileBytes)
	require.NoError(t, err)
	require.Equal(t, h, again)
	require.Equal(t, "U64", again.Tensors[0].Name, "widest first")
	require.Equal(t, "BOOL", again.Tensors[len(infos)-1].Name)
}

func TestNewHeaderRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		infos    []TensorInfo
		metadata map[string]string
		want     error
	}{
		{"name twice", []TensorInfo{info("w", tensor.Float32), info("w", tensor.Int8)}, nil, ErrDuplicateName},
		{"reserved name", []TensorInfo{info("__metadata__", tensor.Float32)}, nil, ErrReservedName},
		{"name is not UTF-8", []TensorInfo{info("\xff", tensor.Float32)}, nil, ErrUTF8},
		{"dtype without a name", []TensorInfo{info("w", tensor.Complex128)}, nil, ErrDType},
		{"no dtype", []TensorInfo{info("w", 0)}, nil, ErrDType},
		{"negative dimension", []TensorInfo{info("w", tensor.Int8, -1)}, nil, ErrShape},
		{"rank 65", []TensorInfo{info("w", tensor.Int8, make([]int64, 65)...)}, nil, ErrShape},
		{"elements overflow", []TensorInfo{info("w", tensor.Int8, math.MaxInt64, 2)}, nil, ErrOverflow},
		{"bytes overflow", []TensorInfo{info("w", tensor.Int64, math.MaxInt64)}, nil, ErrOverflow},
		{"file overflows", []TensorInfo{info("v", tensor.Int8, math.MaxInt64-1), info("w", tensor.Int8, 9)}, nil, ErrOverflow},
		{"half a byte", []TensorInfo{info("w", tensor.Float4E2M1FN, 3)}, nil, ErrMisaligned},
		{"metadata is not UTF-8", nil, map[string]string{"a": "\xff"}, ErrMetadata},
		{"header too large", nil, map[string]string{"a": strings.Repeat("x", MaxHeaderBytes)}, ErrHeaderTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := NewHeader(c.infos, c.metadata)
			require.ErrorIs(t, err, c.want)
			require.Nil(t, h)
		})
	}
}

func TestWriteRefusesWrongSources(t *testing.T) {
	t.Parallel()
	h, err := NewHeader([]TensorInfo{info("w", tensor.Uint8, 4)}, nil)
	require.NoError(t, err)
	for _, n := range []int{0, 3, 5} {
		err := Write(io.Discard, h, func(w io.Writer, _ TensorInfo) error {
			_, err := w.Write(make([]byte, n))
			return err
		})
		require.ErrorIs(t, err, ErrLength)
		require.ErrorContains(t, err, `tensor "w"`)
	}
	read, err := read(file(one(`{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`)+" ", 0))
	require.NoError(t, err)
	require.ErrorIs(t, Write(io.Discard, read, letters), ErrLength, "a header with other spacing")
}

func TestWriteFileReplaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	h, err := NewHeader([]TensorInfo{info("w", tensor.Uint8, 4)}, nil)
	require.NoError(t, err)
	require.NoError(t, WriteFile(path, h, letters))
	require.NoError(t, os.Chmod(path, 0o640))
	require.NoError(t, WriteFile(path, h, letters))
	stat, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), stat.Mode().Perm())

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, WriteFile(link, h, letters))
	stat, err = os.Lstat(link)
	require.NoError(t, err)
	require.True(t, stat.Mode().IsRegular(), "the link is replaced, not followed")
	require.ErrorIs(t, WriteFile(dir, h, letters), ErrNotRegular)
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "none", "x"), h, letters), os.ErrNotExist)
	require.ElementsMatch(t, []string{"model.safetensors", "link"}, list(t, dir))
}

// list returns the names in a directory.
func list(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func TestWriteFileFailureLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	h, err := NewHeader([]TensorInfo{info("w", tensor.Uint8, 4)}, nil)
	require.NoError(t, err)
	broken := errors.New("source failed")
	err = WriteFile(path, h, func(io.Writer, TensorInfo) error { return broken })
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, path)
	requireOld(t, path)
}

// requireOld checks that path still contains "old" and no other file is beside it.
func requireOld(t *testing.T, path string) {
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(old))
	require.Equal(t, []string{filepath.Base(path)}, list(t, filepath.Dir(path)))
}

func TestWriteFileLongName(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	h, err := NewHeader(nil, nil)
	require.NoError(t, err)
	require.NoError(t, WriteFile(path, h, letters))
}
