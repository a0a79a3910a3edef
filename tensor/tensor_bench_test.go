package tensor_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkWriteTo streams 16 MiB: contiguous, with gaps between rows, and transposed, with and without direct access
// to the memory.
func BenchmarkWriteTo(b *testing.B) {
	for _, opaque := range []bool{false, true} {
		dev := openHost(b)
		if opaque {
			dev = opaqueDevice{dev}
		}
		x, err := tensor.Zeros(dev, tensor.Float32, shape{2048, 4096})
		x = closing(b, x, err)
		half := func(v *tensor.Tensor, err error) *tensor.Tensor { return closing(b, v, err) }
		views := map[string]*tensor.Tensor{
			"contiguous": half(x.Narrow(0, 0, 1024)),
			"rows":       half(x.Narrow(1, 0, 2048)),
			"transposed": half(half(x.Narrow(0, 0, 1024)).Transpose(0, 1)),
		}
		for _, name := range []string{"contiguous", "rows", "transposed"} {
			b.Run(fmt.Sprintf("%s/mapped=%v", name, !opaque), func(b *testing.B) {
				b.SetBytes(views[name].Bytes())
				for b.Loop() {
					if _, err := views[name].WriteTo(io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFloat32s converts a million elements.
func BenchmarkFloat32s(b *testing.B) {
	dev := openHost(b)
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float8E4M3FN, tensor.Float4E2M1FN} {
		x, err := tensor.Zeros(dev, dt, shape{1 << 20})
		x = closing(b, x, err)
		b.Run(dt.String(), func(b *testing.B) {
			b.SetBytes(4 << 20)
			for b.Loop() {
				if _, err := tensor.Float32s(x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
