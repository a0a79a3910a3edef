package tensor_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkNewViews measures attaching: specs are validated, and with made=true all tensors are created. ns/tensor
// excludes closing.
func BenchmarkNewViews(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		for _, made := range []bool{false, true} {
			b.Run(fmt.Sprintf("tensors=%d/made=%v", n, made), func(b *testing.B) {
				dev := openHost(b)
				mem, err := dev.Alloc(int64(n) * 8192)
				require.NoError(b, err)
				s := tensor.NewStorage(mem)
				defer s.Close()
				specs := make([]tensor.Spec, n)
				for i := range specs {
					specs[i] = tensor.Spec{DType: tensor.BFloat16, Shape: shape{64, 64}, ByteOffset: int64(i) * 8192}
				}
				storages := []*tensor.Storage{s}
				b.ReportAllocs()
				for b.Loop() {
					views, err := newViews(storages, n, func(i int) (uint32, *tensor.Spec) { return 0, &specs[i] })
					if err != nil {
						b.Fatal(err)
					}
					if made {
						for i := range n {
							views.At(i)
						}
					}
					b.StopTimer()
					if err := views.Close(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/tensor")
			})
		}
	}
}

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
