package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// loop fills a slice of the same length as src.
func loop[A, B any](b *testing.B, name string, src []A, convert func(A) B) {
	dst := make([]B, len(src))
	b.Run(name+"/loop", func(b *testing.B) {
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			for i, v := range src {
				dst[i] = convert(v)
			}
		}
	})
}

// BenchmarkConvert converts a million elements with To, and with a loop over slices. MB/s are millions of elements.
func BenchmarkConvert(b *testing.B) {
	const n = 1 << 20
	dev := openHost(b)
	floats, err := tensor.Arange(dev, tensor.Float32, 0, n, 1)
	floats = closing(b, floats, err)
	as := func(dt tensor.DType) *tensor.Tensor {
		x, err := floats.To(nil, dt)
		return closing(b, x, err)
	}
	to := func(name string, x *tensor.Tensor, dt tensor.DType) {
		b.Run(name+"/To", func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				y, err := x.To(nil, dt)
				require.NoError(b, err)
				require.NoError(b, y.Close())
			}
		})
	}
	single, double, whole := must(tensor.Data[float32](floats))(b), as(tensor.Float64), as(tensor.Int64)
	half, brain, small := as(tensor.Float16), as(tensor.BFloat16), as(tensor.Float8E5M2)
	to("float32 to float16", floats, tensor.Float16)
	loop(b, "float32 to float16", single, tensor.NewF16)
	to("float32 to bfloat16", floats, tensor.BFloat16)
	loop(b, "float32 to bfloat16", single, tensor.NewBF16)
	to("float32 to float8_e5m2", floats, tensor.Float8E5M2)
	loop(b, "float32 to float8_e5m2", single, tensor.NewF8E5M2)
	to("float16 to float32", half, tensor.Float32)
	loop(b, "float16 to float32", must(tensor.Data[tensor.F16](half))(b), tensor.F16.Float32)
	to("bfloat16 to float32", brain, tensor.Float32)
	loop(b, "bfloat16 to float32", must(tensor.Data[tensor.BF16](brain))(b), tensor.BF16.Float32)
	to("float8_e5m2 to float32", small, tensor.Float32)
	loop(b, "float8_e5m2 to float32", must(tensor.Data[tensor.F8E5M2](small))(b), tensor.F8E5M2.Float32)
	to("float64 to float16", double, tensor.Float16)
	loop(b, "float64 to float16", must(tensor.Data[float64](double))(b), func(f float64) tensor.F16 { return tensor.NewF16(float32(f)) })
	to("float64 to float32", double, tensor.Float32)
	loop(b, "float64 to float32", must(tensor.Data[float64](double))(b), func(f float64) float32 { return float32(f) })
	to("int64 to float32", whole, tensor.Float32)
	loop(b, "int64 to float32", must(tensor.Data[int64](whole))(b), func(i int64) float32 { return float32(i) })
}

// BenchmarkStrided reads the 16 MiB of a view in row-major order, and with a loop over the slice.
func BenchmarkStrided(b *testing.B) {
	const rows, columns = 2048, 2048
	x, err := tensor.Full(openHost(b), tensor.Float32, shape{rows, columns + 64}, 1)
	x = closing(b, x, err)
	cut, err := x.Narrow(1, 0, columns)
	cut = closing(b, cut, err)
	turned, err := cut.Transpose(0, 1)
	turned = closing(b, turned, err)
	data, dst := must(tensor.Data[float32](x))(b), make([]float32, rows*columns)
	for name, view := range map[string]*tensor.Tensor{"rows": cut, "transposed": turned} {
		b.Run(name+"/Float32s", func(b *testing.B) {
			b.SetBytes(view.Bytes())
			for b.Loop() {
				_, err := tensor.Float32s(view)
				require.NoError(b, err)
			}
		})
		row, column := columns+64, 1
		if name == "transposed" {
			row, column = column, row
		}
		b.Run(name+"/loop", func(b *testing.B) {
			b.SetBytes(view.Bytes())
			for b.Loop() {
				at := 0
				for i := range rows {
					for j := range columns {
						dst[at] = data[i*row+j*column]
						at++
					}
				}
			}
		})
	}
}
