package tensor_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// elementBytes gathers each element by its index.
func elementBytes(x *tensor.Tensor, storage []byte) []byte {
	s, size := x.Spec(), int64(x.DType().BitSize()/8)
	out := []byte{}
	var visit func(d int, offset int64)
	visit = func(d int, offset int64) {
		if d == x.Rank() {
			out = append(out, storage[s.ByteOffset+offset*size:][:size]...)
			return
		}
		for i := range s.Shape[d] {
			visit(d+1, offset+i*x.Strides()[d])
		}
	}
	visit(0, 0)
	return out
}

func TestRowMajorWhateverTheStrides(t *testing.T) {
	t.Parallel()
	storage := make([]byte, 4096)
	for i := range storage {
		storage[i] = byte(i*131 + i>>8)
	}
	layouts := []struct {
		shape   shape
		strides strides
	}{
		{shape{}, strides{}},
		{shape{7}, strides{1}},
		{shape{7}, strides{3}},
		{shape{4, 5}, strides{5, 1}},
		{shape{4, 5}, strides{1, 4}},
		{shape{4, 5}, strides{8, 1}},
		{shape{3, 4, 5}, strides{5, 15, 1}},
		{shape{3, 4, 5}, strides{1, 15, 3}},
		{shape{3, 1, 5}, strides{5, 99, 1}},
		{shape{2, 3, 4}, strides{0, 4, 1}},
		{shape{2, 3, 4}, strides{4, 0, 1}},
		{shape{2, 3, 4}, strides{12, 4, 0}},
		{shape{3, 0, 2}, strides{2, 2, 1}},
		{shape{5, 3}, strides{1, 1}},
	}
	types := []tensor.DType{tensor.Int8, tensor.BFloat16, tensor.Float32, tensor.Complex64, tensor.Complex128}
	devices(t, func(t *testing.T, dev driver.Device) {
		raw, err := tensor.FromSlice(dev, shape{int64(len(storage))}, storage)
		raw = closing(t, raw, err)
		for _, dt := range types {
			for _, l := range layouts {
				x, err := tensor.New(raw.Storage(), tensor.Spec{DType: dt, Shape: l.shape, Strides: l.strides, ByteOffset: 5})
				x = closing(t, x, err)
				want := elementBytes(x, storage)
				got, err := x.ReadBytes()
				require.NoError(t, err)
				require.Equal(t, want, got, "%v", x.Spec())
				require.EqualValues(t, len(want), x.Bytes())

				out := &bytes.Buffer{}
				n, err := x.WriteTo(out)
				require.NoError(t, err)
				require.EqualValues(t, len(want), n)
				require.True(t, bytes.Equal(want, out.Bytes()))

				c, err := x.Copy(nil)
				c = closing(t, c, err)
				require.True(t, c.Contiguous())
				same, err := c.Equal(x)
				require.NoError(t, err)
				require.True(t, same)
			}
		}
	})
}

// Block sizes above and below the thresholds between the ways of reading memory.
func TestLargeStrided(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		const rows, row = 80, 1 << 20
		x, err := tensor.Zeros(dev, tensor.Uint8, shape{rows, row})
		x = closing(t, x, err)
		for _, width := range []int64{4, 100, 70_000} {
			v, err := x.Narrow(1, 1000, width)
			v = closing(t, v, err)
			want := make([]byte, rows*width)
			for i := range want {
				want[i] = byte(i * 7)
			}
			require.NoError(t, v.FillFrom(bytesReader(want)))
			got, err := v.ReadBytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
		v, err := x.Transpose(0, 1)
		v = closing(t, v, err)
		v, err = v.Narrow(0, 998, 6)
		v = closing(t, v, err)
		got, err := v.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, byte(0), got[0])
		require.Equal(t, byte(3*7), got[(1003-998)*rows])
		require.Equal(t, byte(70_000*3*7&0xFF), got[2*rows+3])
	})
}

func TestFillFrom(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		x := counting(t, dev, 2, 3)
		y, err := x.Transpose(0, 1)
		y = closing(t, y, err)
		raw := []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 99}
		for _, r := range []io.Reader{bytesReader(raw), iotest.OneByteReader(bytesReader(raw)), iotest.DataErrReader(bytesReader(raw[:24]))} {
			require.NoError(t, x.Zero())
			require.NoError(t, y.FillFrom(r))
			require.Equal(t, []int32{1, 3, 5, 2, 4, 6}, ints(t, x))
		}
		for _, v := range []*tensor.Tensor{x, y} {
			require.ErrorIs(t, v.FillFrom(bytesReader(raw[:23])), io.ErrUnexpectedEOF)
			require.ErrorIs(t, v.FillFrom(bytesReader(nil)), io.ErrUnexpectedEOF)
			require.ErrorIs(t, v.FillFrom(iotest.ErrReader(errDisk)), errDisk)
			_, err := v.WriteTo(failingWriter{})
			require.ErrorIs(t, err, errDisk)
			_, err = v.WriteTo(lazyWriter{})
			require.ErrorIs(t, err, io.ErrShortWrite)
		}
		require.EqualValues(t, 1, x.Storage().Refs(), "errors leave no reference behind")
	})
}

var errDisk = errors.New("disk")

type failingWriter struct{}

// Write fails.
func (failingWriter) Write([]byte) (int, error) { return 0, errDisk }

type lazyWriter struct{}

// Write accepts at most one byte without an error.
func (lazyWriter) Write(p []byte) (int, error) { return min(len(p), 1), nil }

func TestCopyFrom(t *testing.T) {
	t.Parallel()
	h := openHost(t)
	for _, pair := range [][2]driver.Device{{h, h}, {h, opaqueDevice{h}}, {opaqueDevice{h}, h}, {opaqueDevice{h}, opaqueDevice{h}}} {
		src := counting(t, pair[0], 3, 4)
		dst, err := tensor.Zeros(pair[1], tensor.Int32, shape{4, 3})
		dst = closing(t, dst, err)
		srcT, err := src.Transpose(0, 1)
		srcT = closing(t, srcT, err)
		dstT, err := dst.Transpose(0, 1)
		dstT = closing(t, dstT, err)

		require.NoError(t, dst.CopyFrom(srcT))
		require.Equal(t, ints(t, srcT), ints(t, dst))
		require.NoError(t, dst.Zero())
		require.NoError(t, dstT.CopyFrom(src))
		require.Equal(t, ints(t, src), ints(t, dstT))

		require.ErrorIs(t, dst.CopyFrom(src), tensor.ErrShape)
		other, err := dst.View(tensor.Float32)
		other = closing(t, other, err)
		require.ErrorIs(t, other.CopyFrom(srcT), tensor.ErrDType)
	}
}

func TestCopyFromOverlapping(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		x := counting(t, dev, 8)
		a, err := x.Narrow(0, 0, 6)
		a = closing(t, a, err)
		b, err := x.Narrow(0, 2, 6)
		b = closing(t, b, err)
		require.NoError(t, b.CopyFrom(a))
		require.Equal(t, []int32{0, 1, 0, 1, 2, 3, 4, 5}, ints(t, x))
		require.NoError(t, x.CopyFrom(x))
		m := counting(t, dev, 3, 3)
		mT, err := m.Transpose(0, 1)
		mT = closing(t, mT, err)
		require.NoError(t, m.CopyFrom(mT))
		require.Equal(t, []int32{0, 3, 6, 1, 4, 7, 2, 5, 8}, ints(t, m))
	})
}

func TestWritesRefused(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	x := counting(t, dev, 3, 1)
	wide, err := x.Expand(shape{3, 4})
	wide = closing(t, wide, err)
	require.ErrorIs(t, wide.Zero(), tensor.ErrNotContiguous)

	handle, err := x.Storage().Memory().Export()
	require.NoError(t, err)
	defer handle.Close()
	mem, err := dev.Import(handle, driver.ImportOptions{})
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	defer s.Close()
	ro, err := tensor.New(s, x.Spec())
	ro = closing(t, ro, err)
	require.ErrorIs(t, ro.Zero(), driver.ErrReadOnly)
	require.ErrorIs(t, ro.CopyFrom(x), driver.ErrReadOnly)
	require.Equal(t, []int32{0, 1, 2}, ints(t, ro))
}

// An expanded tensor may have any number of elements; it is refused before they are allocated.
func TestRepeatedWithoutEnd(t *testing.T) {
	t.Parallel()
	x := counting(t, openHost(t), 1)
	huge, err := x.Expand(shape{1 << 40})
	huge = closing(t, huge, err)
	_, err = huge.ReadBytes()
	require.ErrorIs(t, err, tensor.ErrBounds)
	_, err = tensor.Float32s(huge)
	require.ErrorIs(t, err, tensor.ErrBounds)
	_, err = huge.Copy(nil)
	require.ErrorIs(t, err, tensor.ErrBounds)
	require.Equal(t, "tensor([0, 0, 0,  ..., 0, 0, 0], dtype=torch.int32)", huge.String())
	twos := make(shape, 60)
	for i := range twos {
		twos[i] = 2
	}
	deep, err := x.Expand(twos)
	deep = closing(t, deep, err)
	require.Contains(t, deep.String(), "tensor(...,")
}

func TestEqual(t *testing.T) {
	t.Parallel()
	devices(t, func(t *testing.T, dev driver.Device) {
		x, y := counting(t, dev, 700, 600), counting(t, dev, 700, 600)
		same := func(a, b *tensor.Tensor) bool {
			t.Helper()
			return must(a.Equal(b))(t)
		}
		require.True(t, same(x, y))
		require.True(t, same(x, x))
		last, err := y.Narrow(0, 699, 1)
		last = closing(t, last, err)
		require.NoError(t, last.Zero())
		require.False(t, same(x, y))
		flat, err := x.Reshape(shape{-1})
		require.False(t, same(x, closing(t, flat, err)))
		float, err := x.View(tensor.Float32)
		require.False(t, same(x, closing(t, float, err)))
	})
}
