package tensor_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func bytesReader(p []byte) io.Reader { return bytes.NewReader(p) }

func TestStorageCounts(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	mem, err := dev.Alloc(100)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	require.EqualValues(t, 100, s.Bytes())
	require.Same(t, s, s.Retain())
	require.EqualValues(t, 2, s.Refs())

	x, err := tensor.New(s, tensor.Spec{DType: tensor.Int8, Shape: shape{10}})
	require.NoError(t, err)
	c := x.Alias()
	require.EqualValues(t, 4, s.Refs())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.NoError(t, x.Close())
	require.NoError(t, x.Close(), "twice")
	require.NoError(t, c.Zero(), "the clone keeps the memory")
	require.NoError(t, c.Close())

	require.Zero(t, s.Refs())
	_, err = mem.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, os.ErrClosed, "the last reference closed the memory")
	require.ErrorIs(t, s.Close(), os.ErrClosed)
	require.Zero(t, s.Retain().Refs(), "a closed storage stays closed")
	_, err = tensor.New(s, tensor.Spec{DType: tensor.Int8, Shape: shape{10}})
	require.ErrorIs(t, err, os.ErrClosed)
	require.True(t, c.Alias().Closed())

	other, err := dev.Alloc(0)
	require.NoError(t, err)
	o := tensor.NewStorage(other)
	require.NotEqual(t, s.ID(), o.ID())
	require.NoError(t, o.Close())
}

func TestReadOnlyStorage(t *testing.T) {
	t.Parallel()
	mem, err := openHost(t).Alloc(8)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	r := s.ReadOnly()
	require.Same(t, r, s.ReadOnly())
	require.Same(t, r, r.ReadOnly())
	require.Same(t, s, r.Origin())
	require.Same(t, s, s.Origin())
	require.Equal(t, []any{s.ID(), s.Bytes(), s.Memory()}, []any{r.ID(), r.Bytes(), r.Memory()})
	require.True(t, s.Writable())
	require.False(t, r.Writable())

	x, err := tensor.New(s, tensor.Spec{DType: tensor.Uint8, Shape: shape{8}})
	require.NoError(t, err)
	y, err := tensor.New(r, tensor.Spec{DType: tensor.Uint8, Shape: shape{8}})
	require.NoError(t, err)
	require.ErrorIs(t, y.CopyFrom(x), driver.ErrReadOnly)
	require.NoError(t, s.Close())
	require.EqualValues(t, 2, r.Refs(), "the two count together")
	require.EqualValues(t, 2, s.Refs())
	half, err := y.Narrow(0, 0, 4)
	require.NoError(t, err)
	for _, view := range []*tensor.Tensor{half, y.Alias(), y} {
		require.ErrorIs(t, view.Zero(), driver.ErrReadOnly)
		require.NoError(t, view.Close())
	}
	require.NoError(t, x.Zero())
	require.NoError(t, x.Close())
	require.Zero(t, r.Refs())
	require.ErrorIs(t, r.Close(), os.ErrClosed)
}

func TestShareable(t *testing.T) {
	mem, err := openHost(t).Alloc(8)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	h, err := s.ReadOnly().Shareable()
	require.NoError(t, err)
	require.Equal(t, driver.Handle{Kind: driver.Memfd, Device: mem.Device().Info().UUID, Bytes: 8}, h)
	require.Zero(t, testing.AllocsPerRun(10, func() { s.Shareable() }))
	require.NoError(t, s.Close())

	other, err := openHost(t).Alloc(8)
	require.NoError(t, err)
	s = tensor.NewStorage(other)
	require.NoError(t, s.Close())
	_, err = s.Shareable()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestStorageVersions(t *testing.T) {
	t.Parallel()
	x, err := tensor.Zeros(openHost(t), tensor.Int8, shape{4})
	require.NoError(t, err)
	defer x.Close()
	s := x.Storage()
	require.NoError(t, x.Zero())
	require.Zero(t, s.Version(), "nobody made a promise")
	s.Touch()
	was := s.Version()
	require.NotZero(t, was)
	changed := func(what string) {
		t.Helper()
		require.Greater(t, s.Version(), was, what)
		was = s.Version()
	}
	require.NoError(t, x.Zero())
	changed("Zero")
	require.Error(t, x.FillFrom(bytesReader([]byte{1, 2})))
	changed("a write that failed half-way")
	y, err := x.Copy(nil)
	require.NoError(t, err)
	defer y.Close()
	require.Equal(t, was, s.Version(), "it was read")
	require.Zero(t, y.Storage().Version(), "the promise is about one storage")
	require.NoError(t, x.CopyFrom(y))
	changed("CopyFrom")
	half, err := x.Narrow(0, 0, 2)
	require.NoError(t, err)
	defer half.Close()
	require.NoError(t, half.Zero())
	changed("a write through a view")

	mem, err := openHost(t).Alloc(1)
	require.NoError(t, err)
	lent := tensor.NewLentStorage(mem, "name")
	defer lent.Close()
	name, ok := lent.Lent()
	require.True(t, ok)
	require.Equal(t, "name", name)
	_, ok = s.Lent()
	require.False(t, ok)
}

func TestNewCopiesItsSpec(t *testing.T) {
	t.Parallel()
	x := counting(t, openHost(t), 6)
	spec := tensor.Spec{DType: tensor.Int32, Shape: shape{3, 2}, Strides: strides{1, 3}}
	y, err := tensor.New(x.Storage(), spec)
	y = closing(t, y, err)
	spec.Shape[0], spec.Strides[1] = 1000, 1000
	require.Equal(t, []int32{0, 3, 1, 4, 2, 5}, ints(t, y))
}

func TestEmptyRefusesBeforeAllocating(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	for _, s := range []shape{{-1}, {1 << 62, 1 << 62}, {1 << 61}} {
		_, err := tensor.Zeros(dev, tensor.Float64, s)
		require.Error(t, err)
		require.NotErrorIs(t, err, driver.ErrOutOfMemory)
	}
	_, err := tensor.Zeros(dev, tensor.Int8, shape{1 << 60})
	require.Error(t, err, "the system has not so much")
	_, err = tensor.FromSlice(dev, shape{2}, []int8{1})
	require.ErrorIs(t, err, tensor.ErrShape)
	x, err := tensor.Zeros(dev, tensor.Int8, shape{0, 7})
	x = closing(t, x, err)
	require.Empty(t, must(tensor.Data[int8](x))(t))
	y, err := tensor.FromSlice(dev, shape{0}, []float32{})
	require.Zero(t, closing(t, y, err).Bytes())
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func TestClosedTensor(t *testing.T) {
	t.Parallel()
	x := counting(t, openHost(t), 2, 3)
	y := counting(t, openHost(t), 2, 3)
	require.NoError(t, x.Close())
	_, err := x.WriteTo(io.Discard)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = x.ReadBytes()
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = tensor.Data[int32](x)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = tensor.RawData(x)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = tensor.Float32s(x)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = tensor.At[int32](x, 0, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = x.Copy(nil)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = x.Equal(y)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = y.Equal(x)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, x.CopyFrom(y), os.ErrClosed)
	require.ErrorIs(t, y.CopyFrom(x), os.ErrClosed)
	require.ErrorIs(t, x.FillFrom(bytesReader(nil)), os.ErrClosed)
	require.ErrorIs(t, x.Zero(), os.ErrClosed)
	require.Equal(t, shape{2, 3}, x.Shape(), "what describes it still answers")
	require.Equal(t, "tensor(<closed>, size=(2, 3), dtype=torch.int32)", x.String())
}

// Concurrent readers of a closing tensor get the bytes or os.ErrClosed, and never a fault.
func TestCloseWhileReading(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	for range 50 {
		x, err := tensor.Zeros(dev, tensor.Int8, shape{64, 1024})
		require.NoError(t, err)
		y, err := x.Transpose(0, 1)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for _, read := range []func() error{
			func() error { _, err := x.WriteTo(io.Discard); return err },
			func() error { _, err := y.ReadBytes(); return err },
			func() error { _, err := x.Equal(y); return err },
			func() error { _, err := tensor.At[int8](y, 5, 5); return err },
			func() error { _ = y.String(); return nil },
			func() error { c := x.Alias(); return c.Close() },
			func() error {
				v, err := y.Narrow(0, 1, 5)
				if err != nil {
					return err
				}
				return v.Close()
			},
			x.Close, y.Close, x.Close,
		} {
			wg.Go(func() {
				if err := read(); err != nil && !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Zero(t, x.Storage().Refs())
	}
}
