package tensor_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// smallFloats are the 8-bit target types.
var smallFloats = map[string]struct {
	encode func(float32) byte
	decode func(byte) float32
}{
	"e4m3fn":   {func(f float32) byte { return byte(tensor.NewF8E4M3FN(f)) }, func(c byte) float32 { return tensor.F8E4M3FN(c).Float32() }},
	"e5m2":     {func(f float32) byte { return byte(tensor.NewF8E5M2(f)) }, func(c byte) float32 { return tensor.F8E5M2(c).Float32() }},
	"e4m3fnuz": {func(f float32) byte { return byte(tensor.NewF8E4M3FNUZ(f)) }, func(c byte) float32 { return tensor.F8E4M3FNUZ(c).Float32() }},
	"e5m2fnuz": {func(f float32) byte { return byte(tensor.NewF8E5M2FNUZ(f)) }, func(c byte) float32 { return tensor.F8E5M2FNUZ(c).Float32() }},
}

// Every value and random ones are encoded; none may have a nearer neighbour than the result.
func TestSmallFloatsRound(t *testing.T) {
	t.Parallel()
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
	inf, nan := float32(math.Inf(1)), math.Float32frombits(0x7FC00000)
	for _, test := range []struct {
		name string
		in   float32
		want byte
	}{
		{"e4m3fn", 464, 0x7E}, {"e4m3fn", 464.1, 0x7F}, {"e4m3fn", inf, 0x7F}, {"e4m3fn", -inf, 0xFF}, {"e4m3fn", nan, 0x7F}, {"e4m3fn", -1e-9, 0x80},
		{"e5m2", 61439, 0x7B}, {"e5m2", 61440, 0x7C}, {"e5m2", -inf, 0xFC}, {"e5m2", nan, 0x7F}, {"e5m2", -nan, 0xFF},
		{"e4m3fn", -nan, 0xFF}, {"e5m2fnuz", -nan, 0x80},
		{"e4m3fnuz", 247, 0x7F}, {"e4m3fnuz", 248, 0x80}, {"e4m3fnuz", -inf, 0x80}, {"e4m3fnuz", -1e-9, 0}, {"e4m3fnuz", nan, 0x80},
		{"e5m2fnuz", 61439, 0x7F}, {"e5m2fnuz", 1e30, 0x80},
	} {
		require.Equal(t, test.want, smallFloats[test.name].encode(test.in), "%v as %s", test.in, test.name)
	}
}

// Tensors round random numbers, ties and their neighbours like single elements.
func TestTensorsRoundAsElements(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	var values []float32
	for range 20000 {
		v := float32(math.Ldexp(random.Float64()*2-1, random.IntN(40)-20))
		tie := math.Float32frombits(math.Float32bits(v) & 0xFFF80000) // few bits, as ties have
		values = append(values, v, tie, math.Nextafter32(tie, 1e30), math.Nextafter32(tie, -1e30))
	}
	for name, dt := range map[string]tensor.DType{"e4m3fn": tensor.Float8E4M3FN, "e5m2": tensor.Float8E5M2,
		"e4m3fnuz": tensor.Float8E4M3FNUZ, "e5m2fnuz": tensor.Float8E5M2FNUZ} {
		x, err := tensor.Zeros(openHost(t), dt, shape{int64(len(values))})
		x = closing(t, x, err)
		require.NoError(t, fillFloat32s(x, values))
		got, err := x.ReadBytes()
		require.NoError(t, err)
		for i, v := range values {
			require.Equal(t, smallFloats[name].encode(v), got[i], "%v as %s", v, name)
		}
	}
}

func TestTo(t *testing.T) {
	t.Parallel()
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
		to(x, tensor.Float8E8M0FNU, "tensor([[2.0000e+00, 2.0000e+00, 2.5600e+02],\n        [5.8775e-39,        nan, 8.5899e+09]], dtype=torch.float8_e8m0fnu)")
		z, err := tensor.FromSlice(dev, shape{1}, []complex64{1 + 2i})
		z = closing(t, z, err)
		_, err = z.To(nil, tensor.Float32)
		require.ErrorIs(t, err, tensor.ErrDType)
	})
}

// Every type converts to float32 and back, with more elements than are converted at a time.
func TestToAndBack(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	const n = 16<<10 + 40
	for _, dt := range tensor.DTypes() {
		if dt.IsComplex() {
			continue
		}
		x, err := tensor.Zeros(dev, dt, shape{n})
		x = closing(t, x, err)
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(i % 2)
			if dt == tensor.Float8E8M0FNU { // it has no zero
				values[i]++
			}
		}
		require.NoError(t, fillFloat32s(x, values))
		wide, err := x.To(nil, tensor.Float32)
		wide = closing(t, wide, err)
		require.Equal(t, values, must(tensor.Float32s(wide))(t), dt)
		require.Equal(t, values, must(tensor.Float32s(x))(t), dt)
		back, err := wide.To(nil, dt)
		back = closing(t, back, err)
		equal, err := back.Equal(x)
		require.NoError(t, err)
		require.True(t, equal, dt)
		require.ErrorIs(t, fillFloat32s(x, values[1:]), io.ErrUnexpectedEOF)
	}
}

func TestFullAndArange(t *testing.T) {
	t.Parallel()
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

// Every power of two is kept, and values between two round to the nearer one.
func TestScaleRounds(t *testing.T) {
	t.Parallel()
	for code := range 255 {
		v := tensor.F8E8M0FNU(code).Float32()
		require.EqualValues(t, code, tensor.NewF8E8M0FNU(v))
		require.EqualValues(t, code, tensor.NewF8E8M0FNU(-v))
		if code > 0 {
			require.EqualValues(t, code, tensor.NewF8E8M0FNU(math.Nextafter32(1.5*v, 0)))
			require.EqualValues(t, code+1, tensor.NewF8E8M0FNU(1.5*v))
		}
	}
	require.EqualValues(t, 0, tensor.NewF8E8M0FNU(0))
	require.EqualValues(t, 1, tensor.NewF8E8M0FNU(math.Nextafter32(0x1p-127, 1)))
	for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32} {
		require.EqualValues(t, 0xFF, tensor.NewF8E8M0FNU(v))
	}
}

// The loops for groups agree with the functions for single values: for all bits of the 16-bit floats, for float32
// around each limit, for rows of every length and every place in a group.
func TestHalvesInGroups(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	random := rand.New(rand.NewPCG(3, 4))
	usual := func() float32 { return float32(random.NormFloat64()) }
	var hard []float32
	for _, upper := range []uint32{0, 0x0001, 0x3300, 0x387F, 0x3880, 0x477F, 0x4780, 0x7F7F, 0x7F80, 0x7FC0, 0x7FFF} {
		for _, lower := range []uint32{0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xF000, 0xFFFF} {
			for _, sign := range []uint32{0, 1 << 31} {
				hard = append(hard, math.Float32frombits(sign|upper<<16|lower))
			}
		}
	}
	for i, v := range hard {
		for at := range 9 {
			values := make([]float32, 9+i%5)
			for j := range values {
				values[j] = usual()
			}
			values[at] = v
			x, err := tensor.Zeros(dev, tensor.BFloat16, shape{int64(len(values))})
			require.NoError(t, err)
			require.NoError(t, fillFloat32s(x, values))
			for j, got := range must(tensor.Data[tensor.BF16](x))(t) {
				require.Equal(t, tensor.NewBF16(values[j]), got, "%x", math.Float32bits(values[j]))
			}
			require.NoError(t, x.Close())
			x, err = tensor.Zeros(dev, tensor.Float16, shape{int64(len(values))})
			require.NoError(t, err)
			require.NoError(t, fillFloat32s(x, values))
			for j, got := range must(tensor.Data[tensor.F16](x))(t) {
				require.Equal(t, tensor.NewF16(values[j]), got, "%x", math.Float32bits(values[j]))
			}
			require.NoError(t, x.Close())
		}
	}
	for _, n := range []int64{1 << 16, 1<<16 - 1, 3} {
		bf, err := tensor.Zeros(dev, tensor.BFloat16, shape{n})
		bf = closing(t, bf, err)
		f, err := tensor.Zeros(dev, tensor.Float16, shape{n})
		f = closing(t, f, err)
		bits, half := must(tensor.Data[tensor.BF16](bf))(t), must(tensor.Data[tensor.F16](f))(t)
		for i := range bits {
			bits[i], half[i] = tensor.BF16(i), tensor.F16(i)
		}
		fromBF, fromF := must(tensor.Float32s(bf))(t), must(tensor.Float32s(f))(t)
		for i := range bits {
			if math.Float32bits(bits[i].Float32()) != math.Float32bits(fromBF[i]) || math.Float32bits(half[i].Float32()) != math.Float32bits(fromF[i]) {
				t.Fatalf("%#x: %v %v", i, fromBF[i], fromF[i])
			}
		}
	}
}

// BenchmarkConversion compares the conversions of the 16-bit floats with a copy of half the bytes that they read and
// write, which is the limit of the memory.
func BenchmarkConversion(b *testing.B) {
	const n = 1 << 20
	dev := openHost(b)
	floats := make([]float32, n)
	for i := range floats {
		floats[i] = float32(i%1000)/7 + 0.1
	}
	source, err := tensor.FromSlice(dev, shape{n}, floats)
	source = closing(b, source, err)
	raw, err := source.ReadBytes()
	require.NoError(b, err)
	b.Run("copy", func(b *testing.B) {
		src, dst := make([]byte, 3*n), make([]byte, 3*n)
		b.SetBytes(6 * n)
		for b.Loop() {
			copy(dst, src)
		}
	})
	for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		x, err := tensor.Zeros(dev, dt, shape{n})
		x = closing(b, x, err)
		b.Run(fmt.Sprint("to ", dt), func(b *testing.B) {
			b.SetBytes(6 * n)
			for b.Loop() {
				if err := x.FillFromAs(bytes.NewReader(raw), tensor.Float32); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint("from ", dt), func(b *testing.B) {
			b.SetBytes(6 * n)
			for b.Loop() {
				if _, err := tensor.Float32s(x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
