package tensor_test

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// codesOf returns the codes of values as dt.
func codesOf[T tensor.Element](t *testing.T, dt tensor.DType, values []T) (codes []int) {
	t.Helper()
	x, err := tensor.FromSlice(openHost(t), shape{int64(len(values))}, values)
	x = closing(t, x, err)
	y, err := x.To(nil, dt)
	y = closing(t, y, err)
	raw, err := y.ReadBytes()
	require.NoError(t, err)
	size := dt.BitSize() / 8
	for i := range values {
		code := int(raw[i*size])
		if size == 2 {
			code |= int(raw[i*size+1]) << 8
		}
		codes = append(codes, code)
	}
	return codes
}

// Numbers are rounded to the nearest small float in one step, and NaN becomes PyTorch's code. testdata/rounding.py wrote the
// expected codes.
func TestRoundsOnce(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/rounding.json")
	require.NoError(t, err)
	var types map[string]struct {
		Floats       []string `json:"floats"`
		Codes        []int    `json:"codes"`
		Integers     []int64  `json:"integers"`
		IntegerCodes []int    `json:"integer_codes"`
		NaNs         []int    `json:"nans"`
	}
	require.NoError(t, json.Unmarshal(text, &types))
	require.Len(t, types, 6)
	for name, want := range types {
		dt, err := tensor.ParseDType(name)
		require.NoError(t, err)
		floats := make([]float64, len(want.Floats))
		for i, hex := range want.Floats {
			floats[i], err = strconv.ParseFloat(hex, 64)
			require.NoError(t, err)
		}
		require.Equal(t, want.Codes, codesOf(t, dt, floats), dt)
		require.Equal(t, want.IntegerCodes, codesOf(t, dt, want.Integers), dt)
		var unsigned []uint64
		var unsignedCodes []int
		for i, v := range want.Integers {
			if v >= 0 {
				unsigned, unsignedCodes = append(unsigned, uint64(v)), append(unsignedCodes, want.IntegerCodes[i])
			}
		}
		require.Equal(t, unsignedCodes, codesOf(t, dt, unsigned), dt)
		if want.NaNs != nil {
			bits := []uint32{0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF}
			var narrow []float32
			var wide []float64
			for _, b := range bits {
				narrow = append(narrow, math.Float32frombits(b))
				wide = append(wide, float64(narrow[len(narrow)-1]))
			}
			nans := append(want.NaNs, want.NaNs...)
			require.Equal(t, nans, codesOf(t, dt, narrow), dt)
			require.Equal(t, nans, codesOf(t, dt, wide), dt)
		}
	}
}

// Integers of 32 and 64 bits are rounded once to float32, bfloat16 and the real part of complex64.
func TestIntegersRoundOnce(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	integers := []int64{math.MaxInt64, math.MinInt64, 0, 1<<53 + 1, -(1<<53 + 1), 1<<24 + 1}
	for range 4000 {
		v := random.Int64() >> random.IntN(63)
		tie := int64(1)<<random.IntN(38) - 1 + v&^(1<<38-1) // ones in the places that are dropped
		integers = append(integers, v, -v, tie, tie+1, -tie)
	}
	nearest := func(v int64, precision uint) float64 {
		f, _ := new(big.Float).SetPrec(precision).SetMode(big.ToNearestEven).SetInt64(v).Float64()
		return f
	}
	bf := codesOf(t, tensor.BFloat16, integers)
	x, err := tensor.FromSlice(openHost(t), shape{int64(len(integers))}, integers)
	x = closing(t, x, err)
	z, err := x.To(nil, tensor.Complex64)
	z = closing(t, z, err)
	singles, parts := must(tensor.Float32s(x))(t), must(tensor.Data[complex64](z))(t)
	for i, v := range integers {
		require.Equal(t, float32(nearest(v, 24)), singles[i], v)
		require.Equal(t, complex(float32(nearest(v, 24)), 0), parts[i], v)
		require.Equal(t, float32(nearest(v, 8)), tensor.BF16(bf[i]).Float32(), v)
	}
	small := make([]int32, len(integers))
	for i, v := range integers {
		small[i] = int32(v)
	}
	for i, code := range codesOf(t, tensor.BFloat16, small) {
		require.Equal(t, float32(nearest(int64(small[i]), 8)), tensor.BF16(code).Float32(), small[i])
	}
}

// Numbers beyond a small float's range get the code that float32 numbers get, also beyond the range of float32.
func TestRoundsBeyondRange(t *testing.T) {
	t.Parallel()
	floats := []float64{1e300, -1e300, math.MaxFloat32 * 1.0000001, 1e-300, -1e-300, math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, 0, math.Copysign(0, -1)}
	near := make([]float32, len(floats))
	for i, f := range floats {
		near[i] = float32(f)
	}
	for _, dt := range tensor.DTypes() {
		if dt.IsFloat() && dt.BitSize()%8 == 0 && dt.BitSize() <= 16 && dt != tensor.Float8E8M0FNU {
			require.Equal(t, codesOf(t, dt, near), codesOf(t, dt, floats), dt)
		}
	}
	require.Equal(t, []int{0xFF, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0, 0, 0}, codesOf(t, tensor.Float8E8M0FNU, floats))
	require.Equal(t, []int{1, 0}, codesOf(t, tensor.Float8E8M0FNU, []float64{0x1p-127 * (1 + 0x1p-50), 0x1p-127}))
}

// Arange rounds the product and then the sum, on every processor.
func TestArangeRoundsTwice(t *testing.T) {
	t.Parallel()
	const n = 2000
	start, step := 0.1, 0.3
	x, err := tensor.Arange(openHost(t), tensor.Float64, start, start+step*(n-0.5), step)
	x = closing(t, x, err)
	values, differ := must(tensor.Data[float64](x))(t), 0
	require.Len(t, values, n)
	for i, got := range values {
		product := new(big.Float).SetPrec(53).Mul(big.NewFloat(float64(i)), big.NewFloat(step))
		want, _ := new(big.Float).SetPrec(53).Add(big.NewFloat(start), product).Float64()
		require.Equal(t, want, got, i)
		if math.FMA(float64(i), step, start) != want {
			differ++
		}
	}
	require.NotZero(t, differ, "a fused product would be found")
}

// AllClose rounds the bound in the same way: a fused product accepts this pair.
func TestAllCloseRoundsTwice(t *testing.T) {
	t.Parallel()
	random, dev := rand.New(rand.NewPCG(7, 8)), openHost(t)
	for found := 0; found < 20; {
		tol := tensor.Tolerance{Relative: random.Float64(), Absolute: random.Float64()}
		y := random.Float64()
		product := new(big.Float).SetPrec(53).Mul(big.NewFloat(tol.Relative), big.NewFloat(y))
		bound, _ := new(big.Float).SetPrec(53).Add(big.NewFloat(tol.Absolute), product).Float64()
		fused := math.FMA(tol.Relative, y, tol.Absolute)
		distance := max(bound, fused)
		if bound == fused || (y+distance)-y != distance {
			continue
		}
		found++
		a, err := tensor.FromSlice(dev, shape{1}, []float64{y + distance})
		a = closing(t, a, err)
		b, err := tensor.FromSlice(dev, shape{1}, []float64{y})
		b = closing(t, b, err)
		close, err := a.AllClose(b, tol)
		require.NoError(t, err)
		require.Equal(t, distance <= bound, close)
	}
}
