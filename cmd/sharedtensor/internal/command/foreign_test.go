package command

import (
	"archive/zip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// Every command that reads files names the format of a foreign file and the remedy. The same holds for shards without
// their index.
func TestForeignFilesAreNamed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	torch := p.file("model.pt")
	f, err := os.Create(torch)
	require.NoError(t, err)
	z := zip.NewWriter(f)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/data.pkl", Method: zip.Store})
	require.NoError(t, err)
	_, err = w.Write([]byte("\x80\x02}q\x00."))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())
	file := func(name, content string) string {
		require.NoError(t, os.WriteFile(p.file(name), []byte(content+string(make([]byte, 64))), 0o600))
		return p.file(name)
	}
	for path, want := range map[string]string{
		torch: "PyTorch",
		file("model.gguf", "GGUF\x01\x00\x00\x00"): "unsupported GGUF version",
		file("a.npy", "\x93NUMPY\x01\x00"):         "NumPy",
		file("a.h5", "\x89HDF\r\n\x1a\n"):          "HDF5",
		file("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"): "git lfs pull",
		file("page.safetensors", "<!DOCTYPE html>\n<html>"):                                           "HTML",
		file("a.gz", "\x1f\x8b\x08"):                                                                  "gzip",
	} {
		for _, line := range [][]string{{"inspect", path}, {"serve", "m=" + path}, {"demo", path}} {
			require.Contains(t, p.fails(cli.ExitFailure, line...), want, "%v", line)
		}
	}
	dir := p.file("shards")
	require.NoError(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} {
		data, err := os.ReadFile(p.model("shard.safetensors", 1))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	require.Contains(t, p.fails(cli.ExitFailure, "inspect", dir), "index")
	require.NotContains(t, p.fails(cli.ExitFailure, "serve", "m="+dir), "more than one")
}
