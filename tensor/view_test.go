package tensor_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

type shape = tensor.Shape
type strides = tensor.Strides

func TestViews(t *testing.T) {
	t.Parallel()
	type view func(x *tensor.Tensor) (*tensor.Tensor, error)
	rows := []struct {
		name    string
		of      shape
		view    view
		shape   shape
		strides strides
		values  []int32
	}{
		{"narrow rows", shape{3, 2}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Narrow(0, 1, 2) },
			shape{2, 2}, strides{2, 1}, []int32{2, 3, 4, 5}},
		{"narrow columns", shape{2, 4}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Narrow(-1, -3, 2) },
			shape{2, 2}, strides{4, 1}, []int32{1, 2, 5, 6}},
		{"narrow to nothing", shape{2, 4}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Narrow(1, 4, 0) },
			shape{2, 0}, strides{1, 1}, []int32{}},
		{"select row", shape{3, 2}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Select(0, -1) },
			shape{2}, strides{1}, []int32{4, 5}},
		{"select column", shape{3, 2}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Select(1, 1) },
			shape{3}, strides{2}, []int32{1, 3, 5}},
		{"select to a scalar", shape{3}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Select(0, 2) },
			shape{}, strides{}, []int32{2}},
		{"transpose", shape{2, 3}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Transpose(0, -1) },
			shape{3, 2}, strides{1, 3}, []int32{0, 3, 1, 4, 2, 5}},
		{"permute", shape{2, 2, 3}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Permute(2, 0, 1) },
			shape{3, 2, 2}, strides{1, 6, 3}, []int32{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}},
		{"squeeze all", shape{1, 3, 1}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Squeeze() },
			shape{3}, strides{1}, []int32{0, 1, 2}},
		{"squeeze one", shape{1, 3, 1}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Squeeze(0, 1) },
			shape{3, 1}, strides{1, 1}, []int32{0, 1, 2}},
		{"unsqueeze front", shape{3}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Unsqueeze(0) },
			shape{1, 3}, strides{3, 1}, []int32{0, 1, 2}},
		{"unsqueeze back", shape{3}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Unsqueeze(-1) },
			shape{3, 1}, strides{1, 1}, []int32{0, 1, 2}},
		{"expand", shape{2, 1}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Expand(shape{2, -1, 3}) },
			shape{2, 2, 3}, strides{0, 1, 0}, []int32{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}},
		{"reshape", shape{2, 6}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Reshape(shape{3, -1}) },
			shape{3, 4}, strides{4, 1}, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"reshape to a scalar", shape{1, 1}, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Reshape(shape{}) },
			shape{}, strides{}, []int32{0}},
	}
	devices(t, func(t *testing.T, dev driver.Device) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				x := counting(t, dev, row.of...)
				v, err := row.view(x)
				v = closing(t, v, err)
				require.Equal(t, row.shape, v.Shape())
				require.Equal(t, row.strides, v.Strides())
				require.Equal(t, row.values, ints(t, v))
				require.Same(t, x.Storage(), v.Storage())
				require.EqualValues(t, 1, x.Storage().Refs(), "a view has no reference")
			})
		}
	})
}

func TestViewsRefuse(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	x := counting(t, dev, 2, 3)
	y, err := x.Transpose(0, 1)
	y = closing(t, y, err)
	packed, err := tensor.Zeros(dev, tensor.Float4E2M1FN, shape{3, 5})
	packed = closing(t, packed, err)
	one := func(v *tensor.Tensor, err error) error {
		if v != nil {
			v.Close()
		}
		return err
	}
	rows := []struct {
		name string
		err  error
		got  error
	}{
		{"narrow dimension", tensor.ErrIndex, one(x.Narrow(2, 0, 1))},
		{"narrow length", tensor.ErrIndex, one(x.Narrow(1, 1, 3))},
		{"narrow negative length", tensor.ErrIndex, one(x.Narrow(1, 1, -1))},
		{"narrow start", tensor.ErrIndex, one(x.Narrow(1, -4, 1))},
		{"narrow overflow", tensor.ErrIndex, one(x.Narrow(1, 1, 1<<63-1))},
		{"select index", tensor.ErrIndex, one(x.Select(0, 2))},
		{"select dimension", tensor.ErrIndex, one(x.Select(-3, 0))},
		{"transpose", tensor.ErrIndex, one(x.Transpose(0, 2))},
		{"permute twice", tensor.ErrIndex, one(x.Permute(0, 0))},
		{"permute short", tensor.ErrIndex, one(x.Permute(0))},
		{"squeeze", tensor.ErrIndex, one(x.Squeeze(2))},
		{"unsqueeze", tensor.ErrIndex, one(x.Unsqueeze(3))},
		{"expand size", tensor.ErrShape, one(x.Expand(shape{2, 4}))},
		{"expand fewer", tensor.ErrShape, one(x.Expand(shape{3}))},
		{"expand unknown", tensor.ErrShape, one(x.Expand(shape{-1, 2, 3}))},
		{"expand overflow", tensor.ErrOverflow, one(x.Expand(shape{1 << 62, 2, 3}))},
		{"reshape count", tensor.ErrShape, one(x.Reshape(shape{4}))},
		{"reshape two unknown", tensor.ErrShape, one(x.Reshape(shape{-1, -1}))},
		{"reshape uneven", tensor.ErrShape, one(x.Reshape(shape{4, -1}))},
		{"reshape negative", tensor.ErrShape, one(x.Reshape(shape{-2, -3}))},
		{"reshape strided", tensor.ErrNotView, one(y.Reshape(shape{6}))},
		{"view type", tensor.ErrDType, one(x.View(0))},
		{"view uneven", tensor.ErrNotView, one(x.View(tensor.Int64))},
		{"view strided", tensor.ErrNotView, one(y.View(tensor.Int8))},
		{"view six bits", tensor.ErrNotView, one(x.View(tensor.Float6E2M3FN))},
		{"packed row off the byte", tensor.ErrNotView, one(packed.Select(0, 1))},
		{"packed start off the byte", tensor.ErrNotView, one(packed.Narrow(1, 1, 2))},
	}
	for _, row := range rows {
		require.ErrorIs(t, row.got, row.err, row.name)
	}
	require.EqualValues(t, 1, x.Storage().Refs(), "refused views hold nothing")
	require.ErrorContains(t, one(y.Reshape(shape{6})), "Copy it first")
}

// Reshape of a strided tensor either has the same elements in the same order or fails. Every pair of a strided source
// and a target is tried, and each refusal is verified to be necessary.
func TestReshapeStrided(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	x := counting(t, dev, 4, 2, 6)
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, narrow := range []int64{6, 4, 2, 1} {
			p, err := x.Narrow(2, 0, narrow)
			p = closing(t, p, err)
			v, err := p.Permute(order...)
			v = closing(t, v, err)
			want := ints(t, v)
			for _, target := range factorizations(v.NumElements()) {
				r, err := v.Reshape(target)
				if err != nil {
					require.ErrorIs(t, err, tensor.ErrNotView)
					require.False(t, stridesExist(want, target), "%v of %v can be had", target, v.Spec())
					continue
				}
				require.Equal(t, want, ints(t, r), "%v of %v", target, v.Spec())
				require.NoError(t, r.Close())
			}
		}
	}
}

// factorizations returns shapes of up to three dimensions with n elements, including sizes of 1.
func factorizations(n int64) (all []shape) {
	for a := int64(1); a <= n; a++ {
		for b := int64(1); n%a == 0 && b <= n/a; b++ {
			if n/a%b == 0 {
				all = append(all, shape{a, b, n / a / b})
			}
		}
	}
	return all
}

// stridesExist reports whether values (of a counting tensor, so each is its own position) form an arithmetic grid of a
// shape.
func stridesExist(values []int32, s shape) bool {
	steps, block := make([]int32, len(s)), int64(1)
	for d := len(s) - 1; d >= 0; d-- {
		if s[d] > 1 {
			steps[d] = values[block] - values[0]
		}
		block *= s[d]
	}
	for i, v := range values {
		at, rest := values[0], int64(i)
		for d := len(s) - 1; d >= 0; d-- {
			at += steps[d] * int32(rest%s[d])
			rest /= s[d]
		}
		if at != v {
			return false
		}
	}
	return true
}

func TestViewAs(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	x, err := tensor.FromSlice(dev, shape{2, 4}, []uint16{0x0100, 0x0302, 0x0504, 0x0706, 0x0908, 0x0B0A, 0x0D0C, 0x0F0E})
	x = closing(t, x, err)
	rows := []struct {
		to    tensor.DType
		shape shape
	}{
		{tensor.BFloat16, shape{2, 4}}, {tensor.Uint8, shape{2, 8}}, {tensor.Int32, shape{2, 2}},
		{tensor.Float64, shape{2, 1}}, {tensor.Float4E2M1FN, shape{2, 16}},
	}
	want, err := x.ReadBytes()
	require.NoError(t, err)
	for _, row := range rows {
		v, err := x.View(row.to)
		v = closing(t, v, err)
		require.Equal(t, row.to, v.DType())
		require.Equal(t, row.shape, v.Shape())
		got, err := v.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, want, got)
		back, err := v.View(tensor.Uint16)
		require.True(t, closing(t, back, err).Spec().Equal(x.Spec()))
	}

	// Strided rows keep their distance in bytes.
	half, err := x.Narrow(1, 2, 2)
	half = closing(t, half, err)
	v, err := half.View(tensor.Uint32)
	v = closing(t, v, err)
	require.Equal(t, shape{2, 1}, v.Shape())
	got, err := v.ReadBytes()
	require.NoError(t, err)
	require.Equal(t, []byte{4, 5, 6, 7, 12, 13, 14, 15}, got)

	scalar, err := x.Select(0, 0)
	scalar = closing(t, scalar, err)
	scalar, err = scalar.Select(0, 0)
	scalar = closing(t, scalar, err)
	_, err = scalar.View(tensor.Uint8)
	require.ErrorIs(t, err, tensor.ErrNotView)
}

func TestPackedViews(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		for _, dt := range []tensor.DType{tensor.Float4E2M1FN, tensor.Float6E2M3FN} {
			t.Run(dt.String(), func(t *testing.T) {
				bits := dt.BitSize()
				codes := make([]byte, 4*8)
				for i := range codes {
					codes[i] = byte(i*7+3) & (1<<bits - 1)
				}
				x, err := tensor.Zeros(dev, dt, shape{4, 8})
				x = closing(t, x, err)
				require.NoError(t, x.FillFrom(bytesReader(pack(codes, bits))))

				y, err := x.Transpose(0, 1)
				y = closing(t, y, err)
				z, err := x.Narrow(1, 4, 3)
				z = closing(t, z, err)
				var wantY, wantZ []byte
				for i := range 8 {
					for j := range 4 {
						wantY = append(wantY, codes[j*8+i])
					}
				}
				for j := range 4 {
					wantZ = append(wantZ, codes[j*8+4:j*8+7]...)
				}
				for _, v := range []struct {
					x     *tensor.Tensor
					codes []byte
				}{{x, codes}, {y, wantY}, {z, wantZ}} {
					got, err := v.x.ReadBytes()
					require.NoError(t, err)
					require.Equal(t, pack(v.codes, bits), got)
				}
				require.ErrorIs(t, y.Zero(), tensor.ErrNotContiguous)
				c, err := y.Copy(nil)
				c = closing(t, c, err)
				same, err := c.Equal(y)
				require.NoError(t, err)
				require.True(t, same)
			})
		}
	})
}

// Bits behind the last element belong to a neighbour: they are neither read nor overwritten.
func TestPackedTail(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		x, err := tensor.Zeros(dev, tensor.Float4E2M1FN, shape{8})
		x = closing(t, x, err)
		require.NoError(t, x.FillFrom(bytesReader([]byte{0x21, 0x43, 0x65, 0x87})))
		v, err := x.Narrow(0, 2, 3)
		v = closing(t, v, err)
		got, err := v.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, []byte{0x43, 0x05}, got)
		require.NoError(t, v.Zero())
		got, err = x.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, []byte{0x21, 0x00, 0x60, 0x87}, got)
	})
}

// pack packs codes, lowest bits first, one bit at a time.
func pack(codes []byte, bits int) []byte {
	out := make([]byte, (len(codes)*bits+7)/8)
	for i, c := range codes {
		for b := range bits {
			at := i*bits + b
			out[at/8] |= c >> b & 1 << (at % 8)
		}
	}
	return out
}

func TestViewOfClosed(t *testing.T) {
	t.Parallel()
	x := counting(t, openHost(t), 2, 3)
	require.NoError(t, x.Close())
	for i, view := range []func() (*tensor.Tensor, error){
		func() (*tensor.Tensor, error) { return x.Narrow(0, 0, 1) },
		func() (*tensor.Tensor, error) { return x.Select(0, 0) },
		func() (*tensor.Tensor, error) { return x.Transpose(0, 1) },
		func() (*tensor.Tensor, error) { return x.Permute(0, 1) },
		func() (*tensor.Tensor, error) { return x.Squeeze() },
		func() (*tensor.Tensor, error) { return x.Unsqueeze(0) },
		func() (*tensor.Tensor, error) { return x.Expand(shape{2, 3}) },
		func() (*tensor.Tensor, error) { return x.Reshape(shape{6}) },
		func() (*tensor.Tensor, error) { return x.View(tensor.Int8) },
	} {
		v, err := view()
		require.ErrorIs(t, err, os.ErrClosed, fmt.Sprint(i))
		require.Nil(t, v)
	}
}
