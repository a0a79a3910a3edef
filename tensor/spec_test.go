package tensor_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestShapeNumElements(t *testing.T) {
	t.Parallel()
	long := make(tensor.Shape, tensor.MaxRank+1)
	for i := range long {
		long[i] = 1
	}
	rows := []struct {
		name  string
		shape tensor.Shape
		want  int64
		err   error
	}{
		{"scalar", nil, 1, nil},
		{"matrix", tensor.Shape{2, 3}, 6, nil},
		{"empty", tensor.Shape{4, 0, 5}, 0, nil},
		{"largest", tensor.Shape{math.MaxInt64}, math.MaxInt64, nil},
		{"most dimensions", long[1:], 1, nil},
		{"too many dimensions", long, 0, tensor.ErrShape},
		{"negative", tensor.Shape{2, -1}, 0, tensor.ErrShape},
		{"negative beside 0", tensor.Shape{0, -1}, 0, tensor.ErrShape},
		{"64 bits", tensor.Shape{1 << 32, 1 << 31}, 0, tensor.ErrOverflow},
		{"wraps to 0", tensor.Shape{1 << 32, 1 << 32}, 0, tensor.ErrOverflow},
		{"overflow hidden by 0", tensor.Shape{1 << 62, 1 << 62, 0}, 0, tensor.ErrOverflow},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			n, err := row.shape.NumElements()
			require.ErrorIs(t, err, row.err)
			require.Equal(t, row.want, n)
		})
	}
	require.Equal(t, tensor.Strides{12, 4, 1}, tensor.Shape{2, 3, 4}.Strides())
	require.Equal(t, tensor.Strides{4, 4, 1}, tensor.Shape{2, 0, 4}.Strides())
	require.Equal(t, "[2, 3]", tensor.Shape{2, 3}.String())
	require.Equal(t, "[]", tensor.Strides{}.String())
}

func TestSpecSizes(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name       string
		spec       tensor.Spec
		bytes      int64
		extent     int64
		contiguous bool
	}{
		{"row-major", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{2, 3}}, 24, 24, true},
		{"scalar", tensor.Spec{DType: tensor.Complex128}, 16, 16, true},
		{"strides said", tensor.Spec{DType: tensor.Int16, Shape: tensor.Shape{2, 3}, Strides: tensor.Strides{3, 1}}, 12, 12, true},
		{"transposed", tensor.Spec{DType: tensor.Int16, Shape: tensor.Shape{2, 3}, Strides: tensor.Strides{1, 2}}, 12, 12, false},
		{"padded rows", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2, 3}, Strides: tensor.Strides{8, 1}}, 6, 11, false},
		{"expanded", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{1000, 3}, Strides: tensor.Strides{0, 1}}, 3000, 3, false},
		{"size 1", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{1, 3}, Strides: tensor.Strides{77, 1}}, 3, 3, true},
		{"empty", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{5, 0}, Strides: tensor.Strides{77, 9}}, 0, 0, true},
		{"packed", tensor.Spec{DType: tensor.Float4E2M1FN, Shape: tensor.Shape{3, 3}}, 5, 5, true},
		{"packed six", tensor.Spec{DType: tensor.Float6E3M2FN, Shape: tensor.Shape{5}}, 4, 4, true},
		{"packed strided", tensor.Spec{DType: tensor.Float4E2M1FN, Shape: tensor.Shape{2, 3}, Strides: tensor.Strides{4, 1}}, 3, 4, false},
		{"packed largest", tensor.Spec{DType: tensor.Float6E3M2FN, Shape: tensor.Shape{math.MaxInt64}},
			math.MaxInt64/8*6 + 6, math.MaxInt64/8*6 + 6, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			bytes, err := row.spec.ByteLen()
			require.NoError(t, err)
			require.Equal(t, row.bytes, bytes)
			extent, err := row.spec.Extent()
			require.NoError(t, err)
			require.Equal(t, row.extent, extent)
			require.Equal(t, row.contiguous, row.spec.Contiguous())
			require.NoError(t, row.spec.Validate(row.extent))
			if row.extent > 0 {
				require.ErrorIs(t, row.spec.Validate(row.extent-1), tensor.ErrBounds)
			}
		})
	}
}

func TestSpecRefusesHostile(t *testing.T) {
	t.Parallel()
	const size = 1024
	rows := []struct {
		name string
		spec tensor.Spec
		err  error
	}{
		{"no type", tensor.Spec{Shape: tensor.Shape{1}}, tensor.ErrDType},
		{"unknown type", tensor.Spec{DType: 200, Shape: tensor.Shape{1}}, tensor.ErrDType},
		{"negative size", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{-1}}, tensor.ErrShape},
		{"too few strides", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{1, 1}, Strides: tensor.Strides{1}}, tensor.ErrShape},
		{"strides of a scalar", tensor.Spec{DType: tensor.Int8, Strides: tensor.Strides{1}}, tensor.ErrShape},
		{"negative stride", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2}, Strides: tensor.Strides{-1}}, tensor.ErrShape},
		{"negative offset", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{1}, ByteOffset: -1}, tensor.ErrBounds},
		{"offset behind the end", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{1}, ByteOffset: size}, tensor.ErrBounds},
		{"largest offset", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{1}, ByteOffset: math.MaxInt64}, tensor.ErrBounds},
		{"empty behind the end", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{0}, ByteOffset: size + 1}, tensor.ErrBounds},
		{"bytes overflow", tensor.Spec{DType: tensor.Float64, Shape: tensor.Shape{1 << 61}}, tensor.ErrOverflow},
		{"stride product", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{3}, Strides: tensor.Strides{1 << 62}}, tensor.ErrOverflow},
		{"stride sum", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2, 2},
			Strides: tensor.Strides{math.MaxInt64, math.MaxInt64}}, tensor.ErrOverflow},
		{"stride bytes", tensor.Spec{DType: tensor.Float64, Shape: tensor.Shape{2}, Strides: tensor.Strides{1 << 61}}, tensor.ErrOverflow},
		{"last stride", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2}, Strides: tensor.Strides{math.MaxInt64}}, tensor.ErrOverflow},
		{"one too long", tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{size}, ByteOffset: 1}, tensor.ErrBounds},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) { require.ErrorIs(t, row.spec.Validate(size), row.err) })
	}
	require.NoError(t, tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{0}, ByteOffset: size}.Validate(size))
	require.NoError(t, tensor.Spec{DType: tensor.Float64, Shape: tensor.Shape{1}, ByteOffset: 3}.Validate(size))
}

func TestSpecEqual(t *testing.T) {
	t.Parallel()
	a := tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2, 3}}
	b := a.Clone()
	b.Strides = tensor.Strides{3, 1}
	require.True(t, a.Equal(b))
	c := b.Clone()
	c.Strides[0] = 4
	require.False(t, a.Equal(c))
	require.True(t, c.Equal(c.Clone()))
	require.Equal(t, tensor.Strides{3, 1}, b.Strides, "Clone shares nothing")
	c.ByteOffset = 1
	require.False(t, c.Equal(b))
}

// A spec that Validate accepts is inside the storage, for any numbers.
func FuzzSpec(f *testing.F) {
	f.Add(uint8(12), int64(2), int64(3), int64(3), int64(1), int64(0), int64(24))
	f.Add(uint8(23), int64(1)<<62, int64(2), int64(0), int64(1)<<62, int64(5), int64(1)<<40)
	f.Fuzz(func(t *testing.T, dtype uint8, d0, d1, s0, s1, offset, size int64) {
		s := tensor.Spec{DType: tensor.DType(dtype), Shape: tensor.Shape{d0, d1}, Strides: tensor.Strides{s0, s1}, ByteOffset: offset}
		if s.Validate(size) != nil {
			return
		}
		extent, err := s.Extent()
		require.NoError(t, err)
		require.True(t, extent >= 0 && offset >= 0 && offset+extent <= size && offset+extent >= offset)
		n, err := s.Shape.NumElements()
		require.NoError(t, err)
		if n > 0 {
			last := (float64(d0-1)*float64(s0)+float64(d1-1)*float64(s1)+1)*float64(s.DType.BitSize())/8 - 1
			require.LessOrEqual(t, last, float64(extent)*(1+1e-9))
		}
	})
}
