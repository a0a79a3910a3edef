package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ggufFile writes a GGUF file with one tensor, or without tensors if name is empty.
func (p *place) ggufFile(path, name string, fill byte, metadata gguf.Metadata) string {
	p.t.Helper()
	var infos []gguf.TensorInfo
	if name != "" {
		infos = []gguf.TensorInfo{{Name: name, DType: tensor.Q4_0, Shape: tensor.Shape{4, 64}}}
	}
	h, err := gguf.NewHeader(infos, metadata)
	require.NoError(p.t, err)
	var file bytes.Buffer
	require.NoError(p.t, gguf.Write(&file, h, func(w io.Writer, info gguf.TensorInfo) error {
		_, err := w.Write(bytes.Repeat([]byte{fill}, int(info.Bytes())))
		return err
	}))
	require.NoError(p.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(p.t, os.WriteFile(path, file.Bytes(), 0o600))
	return path
}

// An owner that restarts loads exactly the models whose files have changed, whatever the names of the files are.
func TestServeKeepAfterFilesHaveChanged(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	p := newPlace(t)
	p.killKeeper()
	index := func(dir string) string {
		require.NoError(t, os.MkdirAll(p.file(dir), 0o700))
		weights := make([]string, 0, 6)
		for _, name := range []string{"layer.weight", "layer.bias", "mask", "none", "scale"} {
			weights = append(weights, fmt.Sprintf("%q:%q", name, "weights.part"))
		}
		p.model(filepath.Join(dir, "weights.part"), 1)
		path := p.file(filepath.Join(dir, "any.json"))
		require.NoError(t, os.WriteFile(path, []byte(`{"weight_map":{`+strings.Join(weights, ",")+`}}`), 0o600))
		return path
	}
	part := func(dir string, no int) string {
		return p.file(filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", no+1)))
	}
	split := func(dir string) string {
		for no, name := range []string{"", "w"} {
			p.ggufFile(part(dir, no), name, 1, gguf.Metadata{{Key: "split.no", Value: uint16(no)}, {Key: "split.count", Value: uint16(2)}, {Key: "split.tensors.count", Value: int32(1)}})
		}
		return part(dir, 0)
	}
	commit := strings.Repeat("a", 40)
	repo := filepath.Join(cache, "models--org--m")
	require.NoError(t, os.MkdirAll(filepath.Join(repo, "refs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(commit), 0o600))
	hub := p.ggufFile(filepath.Join(repo, "snapshots", commit, "q4", "m.gguf"), "w", 1, nil)
	directory := filepath.Dir(p.ggufFile(p.file("directory/m.gguf"), "w", 1, nil))

	models := []string{
		"index-file=" + index("index-file"), "index-text=" + index("index-text"), "index-same=" + index("index-same"),
		"split-first=" + split("split-first"), "split-second=" + split("split-second"), "split-same=" + split("split-same"),
		"hub=hf:org/m:q4/m.gguf", "directory=" + directory, "same=" + p.model("same.safetensors", 1),
	}
	serve := func() *process { return p.serve(append([]string{"--keep"}, models...)...) }
	owner := serve()
	owner.signal(syscall.SIGKILL)
	owner.exit()
	owner = serve()
	eventually(t, "all are adopted", func() bool { return strings.Count(owner.stderr.String(), "msg=adopted") == len(models) })
	require.NotContains(t, owner.stderr.String(), "loaded", "no file has changed")
	owner.signal(syscall.SIGKILL)
	owner.exit()

	for _, path := range []string{p.file("index-file/weights.part"), p.file("index-text/any.json"), part("split-first", 0), part("split-second", 1), hub} {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.HasSuffix(path, "weights.part") || strings.Contains(path, "second") {
			data[len(data)-1]++
		}
		require.NoError(t, os.WriteFile(path, data, 0o600)) // in place
	}
	p.model("directory/model.safetensors", 2) // is preferred to the GGUF file
	owner = serve()
	for _, name := range []string{"index-file", "index-text", "split-first", "split-second", "hub", "directory"} {
		eventually(t, name+" is loaded", func() bool { return strings.Contains(owner.stderr.String(), "loaded "+name+":") })
	}
	for _, name := range []string{"index-same", "split-same", "same"} {
		require.NotContains(t, owner.stderr.String(), "loaded "+name+":")
	}
	require.Equal(t, digests(t, p.file("index-file/any.json")), handleDigests(t, attach(t, p.socket(), "index-file")))
	require.Equal(t, uint64(2), attach(t, p.socket(), "index-file").Version())
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit())
}

// Tensors that an index does not place are skipped, and serve warns.
func TestWarningsAboutFiles(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, os.MkdirAll(p.file("m"), 0o700))
	p.model("m/a.safetensors", 1)
	path := p.file("m/model.safetensors.index.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"metadata":{"total_size":"7"},"weight_map":{"layer.weight":"a.safetensors"}}`), 0o600))
	owner := p.serve("m=" + path)
	const warning = `skipped 4 tensors that model.safetensors.index.json does not place in this file: `
	eventually(t, "a warning", func() bool {
		return strings.Contains(owner.stderr.String(), "warning: "+p.file("m/a.safetensors")+": "+warning)
	})
	for _, name := range []string{`"layer.bias"`, `"mask"`, `"none"`, `"scale"`} {
		require.Contains(t, owner.stderr.String(), name)
	}
	h := attach(t, p.socket(), "m")
	require.ElementsMatch(t, []string{"layer.weight", "layer.tied"}, h.StateDict().Names())
}
