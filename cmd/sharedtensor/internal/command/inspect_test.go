package command

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// described runs inspect with --json.
func (p *place) described(args ...string) description {
	p.t.Helper()
	var d description
	require.NoError(p.t, json.Unmarshal([]byte(p.must(append([]string{"inspect", "--json"}, args...)...)), &d))
	return d
}

func TestInspectFileAndName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	p.serve("m=" + path)
	file, name := p.described(path, "--digest"), p.described("m", "--digest")
	require.Equal(t, path, file.Path)
	require.Equal(t, "m", name.Name)
	require.EqualValues(t, 1, name.Version)
	require.Equal(t, file.Tensors, name.Tensors)
	require.Equal(t, file.Metadata, name.Metadata)
	require.Equal(t, file.Bytes, name.Bytes)
	want := digests(t, path)
	require.Len(t, file.Tensors, len(want))
	for _, row := range file.Tensors {
		require.Equal(t, want[row.Name].String(), row.Digest, row.Name)
		if row.Name == "layer.tied" {
			require.Equal(t, "layer.weight", row.TiedTo)
		} else {
			require.Empty(t, row.TiedTo)
		}
	}
	text := p.must("inspect", "m")
	require.Contains(t, text, "name     m version 1 on "+p.socket()+"\ntensors  6\nbytes    2.")
	require.Regexp(t, `(?m)^layer.weight +float32 +\[16, 33\] +2\.1 KiB$`, text)
	require.Regexp(t, `(?m)^layer.tied +float32 +\[16, 33\] +2\.1 KiB  layer.weight$`, text)
	require.Regexp(t, `(?m)^scale +float8_e4m3fn +\[\] +1 B$`, text)
	require.Regexp(t, `(?m)^metadata format = pt\n +sharedtensor\.tied = \{"layer.tied":"layer.weight"\}$`, text)
	require.NotContains(t, text, "SHA-256")
	require.Empty(t, p.described("m").Tensors[0].Digest)
}

func TestInspectFileOrName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("both", 1)
	require.Contains(t, p.fails(cli.ExitFailure, "inspect", "x"), `"x" is neither a file nor a published name: no owner is serving`)
	r := p.run("inspect", "both")
	require.Equal(t, cli.ExitOK, r.code)
	require.Empty(t, r.stderr)
	p.serve("both=" + path)
	r = p.run("inspect", "both")
	require.Contains(t, r.stdout, "file     both")
	require.Equal(t, "both is also a published name; showing the file, use --name for the published name\n", r.stderr)
	require.Contains(t, p.must("inspect", "both", "--name"), "name     both version 1")
	require.Contains(t, p.must("inspect", "both", "--version", "1"), "name     both version 1")
	require.Contains(t, p.fails(cli.ExitFailure, "inspect", "x"), `"x" is neither a file nor a published name: `)
	require.Contains(t, p.fails(cli.ExitFailure, "inspect", "--version", "7", "both"), "version 7")
	require.NoError(t, os.WriteFile(p.file("bad"), []byte("bad"), 0o600))
	require.Contains(t, p.fails(cli.ExitFailure, "inspect", "bad"), "bad: file is truncated")
	require.Contains(t, p.must("inspect", p.dir+"/both"), "file     "+p.dir)
}

func TestInspectShards(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	index := map[string]any{"metadata": map[string]any{"total_size": 8}, "weight_map": map[string]string{"a": "1.safetensors", "b": "2.safetensors"}}
	for name, file := range map[string]string{"a": "1.safetensors", "b": "2.safetensors"} {
		h, err := safetensors.NewHeader([]safetensors.TensorInfo{{Name: name, DType: tensor.Float32, Shape: tensor.Shape{1}}}, nil)
		require.NoError(t, err)
		require.NoError(t, safetensors.WriteFile(p.file(file), h, func(w io.Writer, _ safetensors.TensorInfo) error {
			_, err := w.Write([]byte{0, 0, 0, 1})
			return err
		}))
	}
	data, err := json.Marshal(index)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.file("model.safetensors.index.json"), data, 0o600))
	p.serve("m=" + p.dir)
	d := p.described(p.dir, "--digest")
	require.Equal(t, p.file("1.safetensors"), d.Tensors[0].File)
	require.Equal(t, d.Tensors[0].Digest, p.described("m", "--digest").Tensors[1].Digest)
	require.Contains(t, p.must("inspect", p.dir), "FILE")
}

func TestDescriptionViews(t *testing.T) {
	t.Parallel()
	d := &description{}
	spec := tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{2, 3}, Strides: tensor.Strides{1, 2}}
	empty := tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{0}}
	require.NoError(t, d.fill(&module.Manifest{Tensors: []module.TensorSpec{
		{Name: "a\x1b[2J", Spec: spec}, {Name: "b", Spec: spec}, {Name: "c", Storage: 1, Spec: spec}, {Name: "d", Spec: empty}, {Name: "e", Spec: empty},
	}}))
	require.EqualValues(t, 48, d.Bytes)
	require.Equal(t, []int64{1, 2}, d.Tensors[0].Strides)
	require.Equal(t, "a\x1b[2J", d.Tensors[1].TiedTo)
	require.Empty(t, d.Tensors[2].TiedTo)
	require.Empty(t, d.Tensors[4].TiedTo, "nothing is shared without a device")
	var b strings.Builder
	require.NoError(t, d.print(&b))
	require.Contains(t, b.String(), "STRIDES")
	require.NotContains(t, b.String(), "\x1b")
	overflow := tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{1 << 62, 1 << 62}}
	require.ErrorContains(t, (&description{}).fill(&module.Manifest{Tensors: []module.TensorSpec{{Name: "big", Spec: overflow}}}), "big")
}

func TestHashAllFails(t *testing.T) {
	t.Parallel()
	rows := []*tensorRow{{Name: "short", Bytes: 10}}
	source := func(*tensorRow) (hashSource, error) { return section{strings.NewReader("abc")}, nil }
	err := hashAll(context.Background(), rows, source, func(int64, int64) {})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, `tensor "short"`)
	broken := errors.New("broken")
	err = hashAll(context.Background(), rows, func(*tensorRow) (hashSource, error) { return nil, broken }, func(int64, int64) {})
	require.ErrorIs(t, err, broken)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, hashAll(ctx, rows, source, func(int64, int64) {}), context.Canceled)
}

// An empty list is [] in JSON.
func TestInspectEmptyModel(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	h, err := safetensors.NewHeader(nil, nil)
	require.NoError(t, err)
	path := p.file("empty.safetensors")
	require.NoError(t, safetensors.WriteFile(path, h, nil))
	require.Contains(t, p.must("inspect", path, "--json"), `"tensors": []`)
	p.serve("e=" + path)
	require.Contains(t, p.must("inspect", "e", "--json"), `"tensors": []`)
}

// Commands tie the names that Python's save_model has dropped and recorded in the metadata, if requested. inspect
// reports possible ties.
func TestPythonTies(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	h, err := safetensors.NewHeader([]safetensors.TensorInfo{{Name: "embed", DType: tensor.Uint8, Shape: tensor.Shape{3}}},
		map[string]string{"head": "embed", "format": "pt"})
	require.NoError(t, err)
	path := p.file("python.safetensors")
	require.NoError(t, safetensors.WriteFile(path, h, func(w io.Writer, _ safetensors.TensorInfo) error {
		_, err := w.Write([]byte{1, 2, 3})
		return err
	}))
	require.Contains(t, p.must("inspect", path), "hint     head may be tied to embed, as in files of Python's save_model (1 such name): --python-ties ties them\n")
	d := p.described(path)
	require.Len(t, d.Tensors, 1)
	require.Equal(t, []possibleTie{{"head", "embed"}}, d.PossibleTies)
	d = p.described(path, "--python-ties")
	require.Len(t, d.Tensors, 2)
	require.Empty(t, d.PossibleTies)

	p.serve("--python-ties", "m="+path)
	d = p.described("m")
	require.Len(t, d.Tensors, 2)
	require.Equal(t, "embed", d.Tensors[1].TiedTo)
	copied := p.file("copied.safetensors")
	p.must("publish", "untied="+path)
	require.Len(t, p.described("untied").Tensors, 1)
	p.must("publish", "--python-ties", "tied="+path)
	require.Len(t, p.described("tied").Tensors, 2)
	p.must("get", "tied", "-o", copied)
	require.Equal(t, "embed", p.described(copied).Metadata["head"], "metadata")
	require.Len(t, p.described(copied).Tensors, 2)
	own := p.model("own.safetensors", 1)
	p.must("publish", "own="+own)
	p.must("get", "own", "-o", copied)
	require.NotContains(t, p.described(copied).Metadata, "layer.tied")
	p.must("get", "own", "--python-ties", "-o", copied)
	require.Equal(t, "layer.weight", p.described(copied).Metadata["layer.tied"])
}
