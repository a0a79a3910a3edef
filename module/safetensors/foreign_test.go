package safetensors

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// zipOf is a zip archive of empty files.
func zipOf(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range names {
		_, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// foreignFiles returns the beginnings of files as their tools write them.
func foreignFiles(t *testing.T) map[string][]byte {
	var gzipped bytes.Buffer
	w := gzip.NewWriter(&gzipped)
	_, err := w.Write([]byte("weights"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	long := strings.Repeat("x", 100)
	tar := make([]byte, 1024)
	copy(tar, "model.safetensors")
	copy(tar[257:], "ustar\x0000")
	return map[string][]byte{
		"GGUF":                               []byte("GGUF\x03\x00\x00\x00\x23\x01\x00\x00\x00\x00\x00\x00" + long),
		"PyTorch checkpoint (zip)":           zipOf(t, "archive/data.pkl", "archive/byteorder", "archive/data/0"),
		"PyTorch checkpoint (legacy pickle)": []byte("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03." + long),
		"Python pickle":                      []byte("\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94" + long),
		"ONNX":                               []byte("\x08\x08\x12\x07pytorch\x1a\x052.3.0:\xa4\x12" + long),
		"npz":                                zipOf(t, "weight.npy", "bias.npy"),
		"npy":                                []byte("\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }" + long),
		"HDF5":                               []byte("\x89HDF\r\n\x1a\n\x00\x00\x00\x00\x00\x08\x08\x00" + long),
		"git-lfs pointer": []byte("version https://git-lfs.github.com/spec/v1\noid sha256:" +
			strings.Repeat("ab", 32) + "\nsize 548105171\n"),
		"HTML":            []byte("\n  <!DOCTYPE html>\n<html lang=en><head><title>Sign in</title></head>" + long),
		"gzip":            gzipped.Bytes(),
		"zip archive":     zipOf(t, "readme.txt"),
		"tar archive":     tar,
		"JSON document":   []byte(`{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}` + long),
		"empty file":      {},
		"did not finish":  make([]byte, 4096),
		"TensorFlow Lite": []byte("\x1c\x00\x00\x00TFL3" + long),
		"XML document":    []byte(`<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>`),
	}
}

// Files of other formats with the extension of a safetensors file are recognised.
func TestForeignFilesAreNamed(t *testing.T) {
	t.Parallel()
	for format, data := range foreignFiles(t) {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.safetensors")
			require.NoError(t, os.WriteFile(path, data, 0o600))
			_, err := Open(path)
			require.ErrorIs(t, err, ErrForeignFormat)
			var foreign *FormatError
			require.ErrorAs(t, err, &foreign)
			require.Contains(t, foreign.Format, format)
			require.NotEmpty(t, foreign.Advice)
			require.Error(t, foreign.Err)
			require.True(t, strings.HasPrefix(err.Error(), path+": this is "), err.Error())
			require.NotContains(t, err.Error(), "too large")

			// The same file under its usual name in the directory.
			other := filepath.Join(filepath.Dir(path), "pytorch_model.bin")
			require.NoError(t, os.Rename(path, other))
			_, err = Open(filepath.Dir(path))
			require.ErrorIs(t, err, ErrNoModel)
			if len(data) > 0 {
				require.ErrorContains(t, err, "pytorch_model.bin is "+foreign.Format)
			}
		})
	}
}

// Truncated and damaged safetensors files are reported as such.
func TestBadFilesAreNotCalledForeign(t *testing.T) {
	t.Parallel()
	good := file(`{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4)
	for n := 1; n < len(good); n++ {
		_, err := read(good[:n])
		require.ErrorIs(t, err, ErrTruncated)
		require.False(t, errors.Is(err, ErrForeignFormat), "%d bytes: %v", n, err)
	}
	for _, text := range []string{`{"w":{"dtype":"U8"}}`, "{", "{]"} {
		_, err := read(file(text, 4))
		require.Error(t, err)
		require.False(t, errors.Is(err, ErrForeignFormat), err)
	}
}

// A directory with shards but no index, or an index without shards, is refused with the remedy.
func TestShardsAndIndexNeedEachOther(t *testing.T) {
	t.Parallel()
	write := func(dir, name string, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	shard := func(name string) []byte {
		return file(`{"`+name+`":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1)
	}
	dir := t.TempDir()
	write(dir, "model-00001-of-00003.safetensors", shard("a"))
	_, err := Open(dir)
	require.ErrorIs(t, err, ErrNoIndex, "one shard is no model")
	require.ErrorContains(t, err, "1 of the 3 shards")
	write(dir, "model-00002-of-00003.safetensors", shard("b"))
	_, err = Open(dir)
	require.ErrorIs(t, err, ErrNoIndex)
	require.ErrorContains(t, err, "2 of the 3 shards")
	require.ErrorContains(t, err, "model.safetensors.index.json")
	m, err := Open(filepath.Join(dir, "model-00001-of-00003.safetensors"))
	require.NoError(t, err, "by its own name a shard is a file like others")
	require.NoError(t, m.Close())

	write(dir, "model.safetensors.index.json", []byte(`{"weight_map":{"a":"model-00001-of-00003.safetensors","b":"model-00002-of-00003.safetensors",`+
		`"c":"model-00003-of-00003.safetensors"}}`))
	_, err = Open(dir)
	require.ErrorIs(t, err, ErrMissingShards)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "1 of the 3")
	write(dir, "model-00003-of-00003.safetensors", shard("c"))
	m, err = Open(dir)
	require.NoError(t, err)
	require.NoError(t, m.Close())

	single := t.TempDir()
	write(single, "model-00001-of-00001.safetensors", shard("a"))
	m, err = Open(single)
	require.NoError(t, err, "the only one of one")
	require.NoError(t, m.Close())
}
