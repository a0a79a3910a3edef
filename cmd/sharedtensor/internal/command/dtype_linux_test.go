package command

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// serve and publish convert wide floating-point tensors, and leave integers and tensors of 8 bits as they are. The bytes are
// those of bfloat16: the upper half of a float32 without a rest.
func TestDTypeOfModels(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	infos := []safetensors.TensorInfo{
		{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{2}},
		{Name: "i", DType: tensor.Int32, Shape: tensor.Shape{2}},
		{Name: "q", DType: tensor.Float8E4M3FN, Shape: tensor.Shape{2}},
	}
	h, err := safetensors.NewHeader(infos, nil)
	require.NoError(t, err)
	bits := map[string][]byte{"q": {1, 2}, "i": {1, 0, 0, 0, 2, 0, 0, 0}}
	bits["w"] = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(1.5)), math.Float32bits(-3))
	require.NoError(t, safetensors.WriteFile(p.file("m.safetensors"), h, func(w io.Writer, info safetensors.TensorInfo) error {
		_, err := w.Write(bits[info.Name])
		return err
	}))
	p.serve("--dtype", "bfloat16", "m="+p.file("m.safetensors"))
	p.must("publish", "--dtype", "torch.bfloat16", "n="+p.file("m.safetensors"))
	client := p.dial()
	for _, name := range []string{"m", "n"} {
		model, err := client.Acquire(context.Background(), name, endpoint.AcquireOptions{})
		require.NoError(t, err)
		for key, want := range map[string]tensor.DType{"w": tensor.BFloat16, "i": tensor.Int32, "q": tensor.Float8E4M3FN} {
			x, ok := model.StateDict().Get(key)
			require.True(t, ok)
			require.Equal(t, want, x.DType(), key)
			require.NoError(t, x.Close())
		}
		require.NoError(t, model.Close())
		p.must("get", name, "--output", p.file(name+".copy"))
		got, err := safetensors.Open(p.file(name + ".copy"))
		require.NoError(t, err)
		_ = got.Close()
	}
	w := p.must("get", "m", "--output", "-")
	require.Contains(t, w, "\xc0\x3f\x40\xc0", "1.5 and -3 in bfloat16")
	for _, args := range [][]string{
		{"--dtype", "int8"}, {"--dtype", "float8_e4m3fn"}, {"--dtype", "floaty"}, {"--dtype", "bfloat16", "--file-layout"},
	} {
		for _, command := range []string{"serve", "publish"} {
			require.Contains(t, p.fails(cli.ExitUsage, append([]string{command, "x=" + p.file("m.safetensors")}, args...)...), "--dtype")
		}
	}
}
