package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Another process attaches the model, and the descriptor that it received opens as a file of the model's format.
func TestServeFileLayouts(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	metadata := gguf.Metadata{{Key: "general.name", Value: "tiny"}, {Key: "tokenizer.ggml.tokens", Value: []string{"a", "b"}}}
	h, err := gguf.NewHeader([]gguf.TensorInfo{{Name: "w", DType: tensor.Q4_0, Shape: tensor.Shape{4, 64}}}, metadata)
	require.NoError(t, err)
	var file bytes.Buffer
	require.NoError(t, gguf.Write(&file, h, func(w io.Writer, info gguf.TensorInfo) error {
		_, err := w.Write(bytes.Repeat([]byte("block"), int(info.Bytes()))[:info.Bytes()])
		return err
	}))
	require.NoError(t, os.WriteFile(p.file("tiny.gguf"), file.Bytes(), 0o600))
	s, err := safetensors.NewHeader([]safetensors.TensorInfo{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{6}}}, nil)
	require.NoError(t, err)
	require.NoError(t, safetensors.WriteFile(p.file("x.safetensors"), s, func(w io.Writer, _ safetensors.TensorInfo) error {
		_, err := w.Write([]byte("twenty-four bytes of x.."))
		return err
	}))
	p.serve("--file-layout", "tiny="+p.file("tiny.gguf"), "x="+p.file("x.safetensors"))
	client := p.dial()

	data := descriptorBytes(t, client, "tiny")
	require.Equal(t, file.Bytes(), data[:file.Len()])
	again, err := gguf.ReadHeader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, metadata, again.Metadata)

	data = descriptorBytes(t, client, "x")
	x, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, "twenty-four bytes of x..", string(data[x.DataOffset+x.Tensors[0].Begin:x.DataOffset+x.Tensors[0].End]))

	for _, what := range []string{"tiny", p.file("tiny.gguf")} {
		require.Contains(t, p.must("inspect", what), "q4_0")
	}
	require.Contains(t, p.fails(cli.ExitFailure, "get", "tiny", "--output", p.file("copy.safetensors")), "q4_0")
	for _, name := range []string{"copy.gguf", "copy"} {
		p.must("get", "tiny", "--output", p.file(name))
		got, err := os.ReadFile(p.file(name))
		require.NoError(t, err)
		require.Equal(t, file.Bytes(), got, name)
	}
	require.Equal(t, file.String(), p.must("get", "tiny", "--output", "-"))
	p.must("get", "x", "--output", p.file("x.copy"))
	got, err := safetensors.Open(p.file("x.copy"))
	require.NoError(t, err)
	require.NoError(t, got.Close())
}

// descriptorBytes attaches a model and reads its only slab through /proc/self/fd.
func descriptorBytes(t *testing.T, client *endpoint.Client, name string) []byte {
	t.Helper()
	model, err := client.Acquire(context.Background(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer model.Close()
	storages := model.StateDict().Storages()
	require.Len(t, storages, 1)
	handle, err := storages[0].Memory().Export()
	require.NoError(t, err)
	defer handle.Close()
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", handle.File.Fd()))
	require.NoError(t, err)
	return data
}
