package safetensors

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// manyTensors returns the beginning of a file of 10,000 tensors and the size of the whole file.
func manyTensors(tb testing.TB) (headerOnly, int64) {
	infos := make([]TensorInfo, 10_000)
	for i := range infos {
		name := fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i)
		infos[i] = info(name, tensor.BFloat16, 4096, 4096)
	}
	h, err := NewHeader(infos, map[string]string{"format": "pt"})
	require.NoError(tb, err)
	text, err := h.Encode()
	require.NoError(tb, err)
	return headerOnly{text}, h.FileBytes
}

func BenchmarkReadHeader10000(b *testing.B) {
	r, size := manyTensors(b)
	b.SetBytes(int64(len(r.header)))
	b.ReportAllocs()
	for b.Loop() {
		h, err := ReadHeader(r, size)
		if err != nil || len(h.Tensors) != 10_000 {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewHeader10000(b *testing.B) {
	r, size := manyTensors(b)
	h, err := ReadHeader(r, size)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewHeader(h.Tensors, h.Metadata); err != nil {
			b.Fatal(err)
		}
	}
}
