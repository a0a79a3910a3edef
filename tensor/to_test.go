package tensor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// smallFloats are the 8-bit types that are rounded to.
var smallFloats = map[string]struct {
	encode func(float32) byte
	decode func(byte) float32
}{
	"e4m3fn":   {func(f float32) byte { return byte(tensor.NewF8E4M3FN(f)) }, func(c byte) float32 { return tensor.F8E4M3FN(c).Float32() }},
	"e5m2":     {func(f float32) byte { return byte(tensor.NewF8E5M2(f)) }, func(c byte) float32 { return tensor.F8E5M2(c).Float32() }},
	"e4m3fnuz": {func(f float32) byte { return byte(tensor.NewF8E4M3FNUZ(f)) }, func(c byte) float32 { return tensor.F8E4M3FNUZ(c).Float32() }},
	"e5m2fnuz": {func(f float32) byte { return byte(tensor.NewF8E5M2FNUZ(f)) }, func(c byte) float32 { return tensor.F8E5M2FNUZ(c).Float32() }},
}

// TestSmallFloatsRound encodes every value that there is, and random ones, of which none may have a nearer neighbour.
func TestSmallFloatsRound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, f := range smallFloats {
		t.Run(name, func(t *testing.T) {
			for c := range 256 {
				v := f.decode(byte(c))
				back := f.decode(f.encode(v))
				require.True(t, math.Float32bits(v) == math.Float32bits(back) || v != v && back != back, "code %#x is %v and becomes %v", c, v, back)
			}
			for range 20000 {
				v := float32(math.Ldexp(random.Float64()*2-1, random.IntN(20)-12))
				code := f.encode(v)
				got := f.decode(code)
				if got != got || math.IsInf(float64(got), 0) {
					t.Fatalf("%v becomes %v", v, got)
				}
				distance := math.Abs(float64(got) - float64(v))
				for c := range 256 {
					near := f.decode(byte(c))
					if d := math.Abs(float64(near) - float64(v)); d < distance || d == distance && byte(c) != code && code%2 == 1 && near != got {
						t.Fatalf("%v becomes %v (%#x), %v (%#x) is nearer, or as near and even", v, got, code, near, c)
					}
				}
			}
		})
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, test := range []struct {
		name string
		in   float32
		want byte
	}{
		{"e4m3fn", 464, 0x7E}, {"e4m3fn", 464.1, 0x7F}, {"e4m3fn", inf, 0x7F}, {"e4m3fn", -inf, 0xFF}, {"e4m3fn", nan, 0x7F}, {"e4m3fn", -1e-9, 0x80},
		{"e5m2", 61439, 0x7B}, {"e5m2", 61440, 0x7C}, {"e5m2", -inf, 0xFC}, {"e5m2", nan, 0x7E - 1},
		{"e4m3fnuz", 247, 0x7F}, {"e4m3fnuz", 248, 0x80}, {"e4m3fnuz", -inf, 0x80}, {"e4m3fnuz", -1e-9, 0}, {"e4m3fnuz", nan, 0x80},
		{"e5m2fnuz", 61439, 0x7F}, {"e5m2fnuz", 1e30, 0x80},
	} {
		require.Equal(t, test.want, smallFloats[test.name].encode(test.in), "%v as %s", test.in, test.name)
	}
}

// TestTensorsRoundAsElements fills tensors with what single elements were tested with: random numbers, ties and their neighbours.
func TestTensorsRoundAsElements(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var values []float32
	for range 20000 {
		v := float32(math.Ldexp(random.Float64()*2-1, random.IntN(40)-20))
		tie := math.Float32frombits(math.Float32bits(v) & 0xFFF80000) // few bits, as ties have
		values = append(values, v, tie, math.Nextafter32(tie, 1e30), math.Nextafter32(tie, -1e30))
	}
	for name, dt := range map[string]tensor.DType{"e4m3fn": tensor.Float8E4M3FN, "e5m2": tensor.Float8E5M2,
		"e4m3fnuz": tensor.Float8E4M3FNUZ, "e5m2fnuz": tensor.Float8E5M2FNUZ} {
		x, err := tensor.Empty(openHost(t), dt, shape{int64(len(values))})
		x = closing(t, x, err)
		require.NoError(t, x.FillFloat32s(values))
		got, err := x.ReadBytes()
		require.NoError(t, err)
		for i, v := range values {
			require.Equal(t, smallFloats[name].encode(v), got[i], "%v as %s", v, name)
		}
	}
}

func TestTo(t *testing.T) {
	devices(t, func(t *testing.T, dev driver.Device) {
		to := func(x *tensor.Tensor, dt tensor.DType, want string) {
			t.Helper()
			y, err := x.To(nil, dt)
			y = closing(t, y, err)
			require.Equal(t, want, y.String())
		}
		x, err := tensor.FromSlice(dev, shape{2, 3}, []float32{1.5, -2.75, 300, 0, float32(math.NaN()), 1e10})
		x = closing(t, x, err)
		to(x, tensor.Int32, "tensor([[         1,         -2,        300],\n        [         0,          0, 2147483647]], dtype=torch.int32)")
		to(x, tensor.Uint8, "tensor([[  1,   0, 255],\n        [  0,   0, 255]], dtype=torch.uint8)")
		to(x, tensor.Bool, "tensor([[ True,  True,  True],\n        [False,  True,  True]])")
		turned, err := x.Transpose(0, 1)
		turned = closing(t, turned, err)
		to(turned, tensor.Float4E2M1FN, "tensor([[ 1.5000,  0.0000],\n        [-3.0000,  6.0000],\n        [ 6.0000,  6.0000]], dtype=torch.float4_e2m1fn)")
		whole, err := tensor.FromSlice(dev, shape{3}, []int64{math.MaxInt64, -1, 3})
		whole = closing(t, whole, err)
		to(whole, tensor.Uint64, "tensor([ 9223372036854775807, 18446744073709551615,                    3],\n       dtype=torch.uint64)")
		to(whole, tensor.Int8, "tensor([-1, -1,  3], dtype=torch.int8)")
		to(whole, tensor.Complex64, "tensor([ 9.2234e+18+0.j, -1.0000e+00+0.j,  3.0000e+00+0.j])")
		_, err = x.To(nil, tensor.Float8E8M0FNU)
		require.ErrorIs(t, err, tensor.ErrDType)
		z, err := tensor.FromSlice(dev, shape{1}, []complex64{1 + 2i})
		z = closing(t, z, err)
		_, err = z.To(nil, tensor.Float32)
		require.ErrorIs(t, err, tensor.ErrDType)
	})
}

// TestToAndBack takes every type that there is, with more elements than are converted at a time, to float32 and back.
func TestToAndBack(t *testing.T) {
	dev := openHost(t)
	const n = 16<<10 + 40
	for _, dt := range tensor.DTypes() {
		if dt.IsComplex() || dt == tensor.Float8E8M0FNU {
			continue
		}
		x, err := tensor.Empty(dev, dt, shape{n})
		x = closing(t, x, err)
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(i % 2)
		}
		require.NoError(t, x.FillFloat32s(values))
		wide, err := x.To(nil, tensor.Float32)
		wide = closing(t, wide, err)
		got := make([]float32, n)
		require.NoError(t, tensor.ReadFloat32s(wide, got))
		require.Equal(t, values, got, dt)
		require.NoError(t, tensor.ReadFloat32s(x, got))
		require.Equal(t, values, got, dt)
		back, err := wide.To(nil, dt)
		back = closing(t, back, err)
		equal, err := back.Equal(x)
		require.NoError(t, err)
		require.True(t, equal, dt)
		require.ErrorIs(t, x.FillFloat32s(values[1:]), tensor.ErrShape)
		require.ErrorIs(t, tensor.ReadFloat32s(x, got[1:]), tensor.ErrShape)
	}
}

func TestFullAndArange(t *testing.T) {
	dev := openHost(t)
	x, err := tensor.Full(dev, tensor.BFloat16, shape{2, 2}, 1.5)
	require.Equal(t, "tensor([[1.5000, 1.5000],\n        [1.5000, 1.5000]], dtype=torch.bfloat16)", closing(t, x, err).String())
	x, err = tensor.Arange(dev, tensor.Int64, 10, 0, -3)
	require.Equal(t, "tensor([10,  7,  4,  1])", closing(t, x, err).String())
	x, err = tensor.Zeros(dev, tensor.Float32, shape{2})
	x = closing(t, x, err)
	require.NoError(t, x.Fill(-2))
	require.Equal(t, "tensor([-2., -2.])", x.String())
	for _, bad := range [][3]float64{{0, 1, 0}, {0, 1, -1}, {0, math.Inf(1), 1}, {math.NaN(), 1, 1}, {0, 1e300, 1}} {
		_, err := tensor.Arange(dev, tensor.Float32, bad[0], bad[1], bad[2])
		require.ErrorIs(t, err, tensor.ErrShape, bad)
	}
}

func BenchmarkFillFloat32s(b *testing.B) {
	dev := openHost(b)
	values := make([]float32, 1<<20)
	for i := range values {
		values[i] = float32(i%1000) / 7
	}
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float8E4M3FN} {
		b.Run(fmt.Sprint(dt), func(b *testing.B) {
			x, err := tensor.Empty(dev, dt, shape{1 << 20})
			x = closing(b, x, err)
			b.SetBytes(4 << 20)
			for b.Loop() {
				if err := x.FillFloat32s(values); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
