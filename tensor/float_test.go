package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// sameFloat compares bits, except that all NaNs are equal.
func sameFloat(t *testing.T, want, got float32, code int) {
	t.Helper()
	if math.IsNaN(float64(want)) && math.IsNaN(float64(got)) {
		return
	}
	if math.Float32bits(want) != math.Float32bits(got) {
		t.Fatalf("code %#x: want %v, got %v", code, want, got)
	}
}

// ladder computes the positive values of a float format by addition: the smallest step from 0, and twice the step after
// each power of two from the second on. It shares no formula with the decoder.
func ladder(step float64, perBinade, codes int) []float32 {
	values, v := make([]float32, codes), 0.0
	for i := range values {
		values[i] = float32(v)
		v += step
		if next := i + 1; next >= 2*perBinade && next%perBinade == 0 {
			step *= 2
		}
	}
	return values
}

func TestSmallFloatsExhaustive(t *testing.T) {
	t.Parallel()
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	rows := []struct {
		dtype     DType
		step      float64 // the smallest positive value
		perBinade int
		signBit   int
		largest   float32         // pinned to the specification
		smallNorm float32         // smallest normal number, likewise
		special   map[int]float32 // positive codes that are not numbers
		negZero   float32         // the value of the sign bit alone
	}{
		{Float8E4M3FN, 0x1p-9, 8, 0x80, 448, 0x1p-6, map[int]float32{0x7F: nan}, float32(math.Copysign(0, -1))},
		{Float8E5M2, 0x1p-16, 4, 0x80, 57344, 0x1p-14, map[int]float32{0x7C: inf, 0x7D: nan, 0x7E: nan, 0x7F: nan}, float32(math.Copysign(0, -1))},
		{Float8E4M3FNUZ, 0x1p-10, 8, 0x80, 240, 0x1p-7, nil, nan},
		{Float8E5M2FNUZ, 0x1p-17, 4, 0x80, 57344, 0x1p-15, nil, nan},
		{Float6E2M3FN, 0.125, 8, 0x20, 7.5, 1, nil, float32(math.Copysign(0, -1))},
		{Float6E3M2FN, 0.0625, 4, 0x20, 28, 0.25, nil, float32(math.Copysign(0, -1))},
		{Float4E2M1FN, 0.5, 2, 0x8, 6, 1, nil, float32(math.Copysign(0, -1))},
	}
	for _, row := range rows {
		t.Run(row.dtype.String(), func(t *testing.T) {
			table := smallFloats[row.dtype].values
			values := ladder(row.step, row.perBinade, row.signBit)
			largest := float32(0)
			for code, want := range values {
				if s, ok := row.special[code]; ok {
					want = s
				} else {
					largest = max(largest, want)
				}
				sameFloat(t, want, table[code], code)
				if code > 0 {
					sameFloat(t, -want, table[code|row.signBit], code|row.signBit)
				}
			}
			sameFloat(t, row.negZero, table[row.signBit], row.signBit)
			require.Equal(t, row.largest, largest)
			require.Equal(t, row.smallNorm, table[row.perBinade])
		})
	}
}

func TestFloat4HasSixteenValues(t *testing.T) {
	t.Parallel()
	want := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	for code, v := range want {
		require.Equal(t, v, smallFloats[Float4E2M1FN].values[code])
		require.Equal(t, -v, smallFloats[Float4E2M1FN].values[code|8])
	}
}

func TestScaleExhaustive(t *testing.T) {
	t.Parallel()
	v := math.Float32frombits(1 << 22) // 2^-127, which float32 has as a subnormal
	for code := range 255 {
		sameFloat(t, v, F8E8M0FNU(code).Float32(), code)
		v *= 2
	}
	require.Equal(t, float32(1), F8E8M0FNU(127).Float32())
	require.True(t, math.IsNaN(float64(F8E8M0FNU(255).Float32())))
}

func TestSmallFloatMethods(t *testing.T) {
	t.Parallel()
	require.Equal(t, float32(448), F8E4M3FN(0x7E).Float32())
	require.Equal(t, float32(57344), F8E5M2(0x7B).Float32())
	require.Equal(t, float32(240), F8E4M3FNUZ(0x7F).Float32())
	require.Equal(t, float32(57344), F8E5M2FNUZ(0x7F).Float32())
}

func TestFloat16Exhaustive(t *testing.T) {
	t.Parallel()
	values := ladder(0x1p-24, 1024, 0x7C00)
	require.Equal(t, float32(65504), values[0x7BFF])
	for code, want := range values {
		sameFloat(t, want, F16(code).Float32(), code)
		sameFloat(t, -want, F16(code|0x8000).Float32(), code|0x8000)
		require.Equal(t, F16(code), NewF16(want))
		require.Equal(t, F16(code|0x8000), NewF16(-want))
	}
	for code := 0x7C00; code < 0x8000; code++ {
		f := F16(code).Float32()
		if code == 0x7C00 {
			require.True(t, math.IsInf(float64(f), 1))
			require.Equal(t, F16(code), NewF16(f))
			require.Equal(t, F16(0xFC00), NewF16(-f))
			continue
		}
		require.True(t, math.IsNaN(float64(f)))
		require.True(t, math.IsNaN(float64(F16(code|0x8000).Float32())))
		require.Equal(t, F16(code|0x200), NewF16(f), "a NaN keeps its payload and is quiet")
	}
}

// Between two neighbours the midpoint rounds to the even one, and other values to the nearer one.
func TestFloat16Rounding(t *testing.T) {
	t.Parallel()
	values := append(ladder(0x1p-24, 1024, 0x7C00), 65536)
	for code := range values[:0x7C00] {
		middle := float32((float64(values[code]) + float64(values[code+1])) / 2)
		even := F16(code + code&1)
		require.Equal(t, even, NewF16(middle), "middle above %#x", code)
		require.Equal(t, even|0x8000, NewF16(-middle))
		require.Equal(t, F16(code), NewF16(math.Nextafter32(middle, 0)))
		require.Equal(t, F16(code+1), NewF16(math.Nextafter32(middle, 1e9)))
	}
	require.Equal(t, F16(0x7C00), NewF16(math.MaxFloat32))
	require.Equal(t, F16(0), NewF16(math.SmallestNonzeroFloat32))
}

func TestBFloat16Exhaustive(t *testing.T) {
	t.Parallel()
	for code := range 1 << 16 {
		bits := uint32(code) << 16
		f := BF16(code).Float32()
		require.Equal(t, bits, math.Float32bits(f))
		if math.IsNaN(float64(f)) {
			require.Equal(t, BF16(code|0x40), NewBF16(f), "a NaN keeps its payload and is quiet")
			require.True(t, math.IsNaN(float64(NewBF16(math.Float32frombits(bits|0xFFFF)).Float32())))
			continue
		}
		require.Equal(t, BF16(code), NewBF16(f))
		if math.IsInf(float64(f), 0) {
			continue
		}
		require.Equal(t, BF16(code), NewBF16(math.Float32frombits(bits|0x7FFF)))
		require.Equal(t, BF16(code+code&1), NewBF16(math.Float32frombits(bits|0x8000)))
		require.Equal(t, BF16(code+1), NewBF16(math.Float32frombits(bits|0x8001)))
	}
	// A NaN whose payload is in the lower half only must not become infinite.
	require.True(t, math.IsNaN(float64(NewBF16(math.Float32frombits(0x7F800001)).Float32())))
	require.True(t, math.IsNaN(float64(NewF16(math.Float32frombits(0x7F800001)).Float32())))
}

func TestUnpackIsPackBackwards(t *testing.T) {
	t.Parallel()
	for _, bits := range []int64{4, 6} {
		packed := []byte{0xE4, 0x1B, 0xC7, 0x5A, 0x99, 0x03}
		codes := make([]byte, int64(len(packed))*8/bits)
		unpack(codes, packed, bits)
		for i, c := range codes {
			for b := range bits {
				at := int64(i)*bits + b
				require.Equal(t, packed[at/8]>>(at%8)&1, c>>b&1)
			}
		}
	}
}
