package tensor_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// roundTrip writes values, reads them as the memory itself and one by one.
func roundTrip[T tensor.Element](t *testing.T, dev driver.Device, values ...T) {
	t.Helper()
	x, err := tensor.FromSlice(dev, shape{int64(len(values))}, values)
	x = closing(t, x, err)
	require.Equal(t, tensor.DTypeOf[T](), x.DType())
	data, err := tensor.Data[T](x)
	require.NoError(t, err)
	require.Equal(t, values, data)
	require.Equal(t, len(data), cap(data), "append cannot reach a neighbour")
	data[0] = data[1]
	require.Equal(t, values[1], must(tensor.At[T](x, 0))(t))
	require.Equal(t, values[2], must(tensor.At[T](x, -1))(t))
}

func TestData(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	roundTrip(t, dev, uint8(1), 2, 255)
	roundTrip(t, dev, int8(1), -2, -128)
	roundTrip(t, dev, int16(1), -2, math.MinInt16)
	roundTrip(t, dev, uint16(1), 2, math.MaxUint16)
	roundTrip(t, dev, int32(1), -2, math.MinInt32)
	roundTrip(t, dev, uint32(1), 2, math.MaxUint32)
	roundTrip(t, dev, int64(1), -2, math.MinInt64)
	roundTrip(t, dev, uint64(1), 2, math.MaxUint64)
	roundTrip(t, dev, float32(1), -2.5, math.MaxFloat32)
	roundTrip(t, dev, 1.0, -2.5, math.MaxFloat64)
	roundTrip(t, dev, complex64(1), -2.5+1i, 7i)
	roundTrip(t, dev, complex128(1), -2.5+1i, 7i)
	roundTrip(t, dev, tensor.F16(1), 2, 0xFFFF)
	roundTrip(t, dev, tensor.BF16(1), 2, 0xFFFF)
	roundTrip(t, dev, tensor.F8E4M3FN(1), 2, 255)
	roundTrip(t, dev, tensor.F8E5M2(1), 2, 255)
	roundTrip(t, dev, tensor.F8E8M0FNU(1), 2, 255)
	roundTrip(t, dev, tensor.F8E4M3FNUZ(1), 2, 255)
	roundTrip(t, dev, tensor.F8E5M2FNUZ(1), 2, 255)

	flags, err := tensor.FromBools(dev, shape{2}, []bool{false, true})
	flags = closing(t, flags, err)
	require.Equal(t, tensor.Bool, flags.DType())
	require.Equal(t, []uint8{0, 1}, must(tensor.Data[uint8](flags))(t))
}

func TestDataIsTheMemory(t *testing.T) {
	t.Parallel()
	x := counting(t, openHost(t), 2, 3)
	row, err := x.Select(0, 1)
	row = closing(t, row, err)
	must(tensor.Data[int32](row))(t)[0] = 42
	require.Equal(t, []int32{0, 1, 2, 42, 4, 5}, ints(t, x))
	require.Equal(t, byte(42), must(tensor.RawData(x))(t)[12])
}

func TestDataRefuses(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	x := counting(t, dev, 4, 4)
	_, err := tensor.Data[float32](x)
	require.ErrorIs(t, err, tensor.ErrDType)
	_, err = tensor.Data[uint8](x)
	require.ErrorIs(t, err, tensor.ErrDType)
	y, err := x.Transpose(0, 1)
	y = closing(t, y, err)
	_, err = tensor.Data[int32](y)
	require.ErrorIs(t, err, tensor.ErrNotContiguous)
	odd, err := tensor.New(x.Storage(), tensor.Spec{DType: tensor.Int32, Shape: shape{3}, ByteOffset: 1})
	odd = closing(t, odd, err)
	_, err = tensor.Data[int32](odd)
	require.ErrorIs(t, err, tensor.ErrAlignment)
	require.EqualValues(t, 0x01000000, must(tensor.At[int32](odd, 0))(t), "an unaligned element is read all the same")
	gpu := counting(t, opaqueDevice{dev}, 4)
	_, err = tensor.Data[int32](gpu)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.EqualValues(t, 3, must(tensor.At[int32](gpu, 3))(t))

	_, err = tensor.At[int32](x, 0)
	require.ErrorIs(t, err, tensor.ErrIndex)
	_, err = tensor.At[int32](x, 0, 4)
	require.ErrorIs(t, err, tensor.ErrIndex)
	_, err = tensor.At[int32](x, -5, 0)
	require.ErrorIs(t, err, tensor.ErrIndex)
	_, err = tensor.At[int64](x, 0, 0)
	require.ErrorIs(t, err, tensor.ErrDType)
	_, err = tensor.Item[int32](x)
	require.ErrorIs(t, err, tensor.ErrShape)
	one, err := x.Narrow(0, 2, 1)
	one = closing(t, one, err)
	one, err = one.Narrow(1, 3, 1)
	one = closing(t, one, err)
	require.EqualValues(t, 11, must(tensor.Item[int32](one))(t))
	require.EqualValues(t, 9, must(tensor.At[int32](y, 1, 2))(t))
}

func TestFloat32s(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		check := func(x *tensor.Tensor, err error, want ...float32) {
			t.Helper()
			require.Equal(t, want, must(tensor.Float32s(closing(t, x, err)))(t))
		}
		x, err := tensor.FromSlice(dev, shape{2}, []int8{-1, 127})
		check(x, err, -1, 127)
		x, err = tensor.FromSlice(dev, shape{2}, []uint64{1, math.MaxUint64})
		check(x, err, 1, 1<<64)
		x, err = tensor.FromSlice(dev, shape{1}, []int64{math.MinInt64})
		check(x, err, -1<<63)
		x, err = tensor.FromSlice(dev, shape{2}, []float64{0.1, 1e300})
		check(x, err, 0.1, float32(math.Inf(1)))
		x, err = tensor.FromSlice(dev, shape{2}, []float32{1.5, -0.25})
		check(x, err, 1.5, -0.25)
		x, err = tensor.FromSlice(dev, shape{2}, []tensor.BF16{0x3FC0, 0xC000})
		check(x, err, 1.5, -2)
		x, err = tensor.FromSlice(dev, shape{2}, []tensor.F16{0x3E00, 0xC000})
		check(x, err, 1.5, -2)
		x, err = tensor.FromSlice(dev, shape{2}, []tensor.F8E5M2{0x3E, 0xC0})
		check(x, err, 1.5, -2)
		x, err = tensor.FromBools(dev, shape{2}, []bool{true, false})
		check(x, err, 1, 0)
		x, err = tensor.FromSlice(dev, shape{1}, []complex64{1})
		_, convErr := tensor.Float32s(closing(t, x, err))
		require.ErrorIs(t, convErr, tensor.ErrDType)

		for dt, want := range map[tensor.DType][]float32{
			tensor.Float4E2M1FN: {0, 0.5, 1, 1.5, 2, 3, 4, 6},
			tensor.Float6E2M3FN: {0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875},
			tensor.Float6E3M2FN: {0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375},
		} {
			x, err := tensor.Zeros(dev, dt, shape{8})
			x = closing(t, x, err)
			require.NoError(t, x.FillFrom(bytesReader(pack([]byte{0, 1, 2, 3, 4, 5, 6, 7}, dt.BitSize()))))
			check(x.Alias(), nil, want...)
		}
		// More than are converted at a time, of a type whose elements straddle bytes.
		const n = 40_003
		codes := make([]byte, n)
		for i := range codes {
			codes[i] = byte(i % 64)
		}
		x, err = tensor.Zeros(dev, tensor.Float6E2M3FN, shape{n})
		x = closing(t, x, err)
		require.NoError(t, x.FillFrom(bytesReader(pack(codes, 6))))
		got := must(tensor.Float32s(x))(t)
		for i := 64; i < n; i++ {
			require.Equal(t, got[i%64], got[i])
		}
		require.EqualValues(t, 7.5, got[31])
		require.EqualValues(t, -7.5, got[63])
	})
}

// Exposure by one borrower is not attributed to another borrower or to the owner.
func TestBorrowersAreApart(t *testing.T) {
	t.Parallel()
	x, err := tensor.FromSlice(openHost(t), shape{2}, []int32{1, 2})
	x = closing(t, x, err)
	must(tensor.Data[int32](x))(t)
	_, _, ok := x.Storage().Borrowed()
	require.False(t, ok, "the memory is this process's own")

	one, other := x.Storage().Borrow(), x.Storage().Borrow()
	require.NotSame(t, one, other)
	require.Same(t, x.Storage(), one.Origin())
	require.Equal(t, x.Storage().ID(), one.ID())
	require.False(t, one.Writable())
	y, err := tensor.New(one, x.Spec())
	y = closing(t, y, err)
	must(tensor.Data[int32](y))(t)
	borrower, exposed, ok := one.Borrowed()
	require.True(t, ok)
	require.Same(t, one, borrower)
	require.True(t, exposed.Load())
	_, exposed, _ = other.Borrowed()
	require.False(t, exposed.Load())
}
