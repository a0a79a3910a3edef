package tensor_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// first returns the first of several views.
func first(views []*tensor.Tensor, err error) (*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

// viewsOf are the methods that make a view of an Int32 tensor of shape [1, 4, 6] or of a view of one.
var viewsOf = map[string]func(x *tensor.Tensor) (*tensor.Tensor, error){
	"Narrow":    func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Narrow(-1, 1, 2) },
	"Select":    func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Select(-1, 1) },
	"Transpose": func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Transpose(0, -1) },
	"Permute":   func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Permute(2, 0, 1) },
	"Squeeze":   func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Squeeze() },
	"Unsqueeze": func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Unsqueeze(0) },
	"Expand":    func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Expand(tensor.Shape{3, -1, -1}) },
	"Reshape":   func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Reshape(tensor.Shape{6, 4}) },
	"View":      func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.View(tensor.Float32) },
	"Split":     func(x *tensor.Tensor) (*tensor.Tensor, error) { return first(x.Split(1, 3)) },
	"Unbind": func(x *tensor.Tensor) (*tensor.Tensor, error) {
		for v, err := range x.Unbind(1) {
			return v, err
		}
		return nil, io.EOF
	},
	"view of a view": func(x *tensor.Tensor) (*tensor.Tensor, error) {
		v, err := x.Reshape(tensor.Shape{1, 6, 4})
		if err != nil {
			return nil, err
		}
		return v.Select(1, 2)
	},
}

// uses are the methods that read, write or pass on the elements.
var uses = map[string]func(v, other *tensor.Tensor) error{
	"ReadBytes": func(v, _ *tensor.Tensor) error { _, err := v.ReadBytes(); return err },
	"WriteTo":   func(v, _ *tensor.Tensor) error { _, err := v.WriteTo(io.Discard); return err },
	"FillFrom":  func(v, _ *tensor.Tensor) error { return v.FillFrom(bytes.NewReader(make([]byte, v.Bytes()))) },
	"Zero":      func(v, _ *tensor.Tensor) error { return v.Zero() },
	"CopyFrom":  func(v, other *tensor.Tensor) error { return v.CopyFrom(other) },
	"source":    func(v, other *tensor.Tensor) error { return other.CopyFrom(v) },
	"Copy":      func(v, _ *tensor.Tensor) error { _, err := v.Copy(nil); return err },
	"To":        func(v, _ *tensor.Tensor) error { _, err := v.To(nil, tensor.Float64); return err },
	"Equal":     func(v, other *tensor.Tensor) error { _, err := other.Equal(v); return err },
	"RawData":   func(v, _ *tensor.Tensor) error { _, err := tensor.RawData(v); return err },
	"Float32s":  func(v, _ *tensor.Tensor) error { _, err := tensor.Float32s(v); return err },
	"Region":    func(v, _ *tensor.Tensor) error { _, _, err := v.Region(); return err },
	"Alias": func(v, _ *tensor.Tensor) error {
		if a := v.Alias(); !a.Closed() {
			return a.Close()
		}
		return os.ErrClosed
	},
	"At": func(v, _ *tensor.Tensor) error {
		if v.DType() == tensor.Float32 {
			_, err := tensor.At[float32](v, make([]int64, v.Rank())...)
			return err
		}
		_, err := tensor.At[int32](v, make([]int64, v.Rank())...)
		return err
	},
	"Elements": func(v, _ *tensor.Tensor) error {
		if v.DType() == tensor.Float32 {
			for _, err := range tensor.Elements[float32](v) {
				return err
			}
		}
		for _, err := range tensor.Elements[int32](v) {
			return err
		}
		return nil
	},
	"another view": func(v, _ *tensor.Tensor) error { _, err := v.Unsqueeze(0); return err },
}

// lives tests each view of each tensor that create makes: [1, 4, 6], Int32, ascending from 0.
func lives(t *testing.T, create func(t *testing.T) *tensor.Tensor) {
	drivertest.Leaks(t)
	for _, name := range slices.Sorted(maps.Keys(viewsOf)) {
		t.Run(name, func(t *testing.T) {
			viewLives(t, create, viewsOf[name])
		})
	}
}

func viewLives(t *testing.T, create func(t *testing.T) *tensor.Tensor, view func(x *tensor.Tensor) (*tensor.Tensor, error)) {
	x := create(t)
	refs := x.Storage().Refs()
	v, err := view(x)
	require.NoError(t, err)
	require.Equal(t, refs, x.Storage().Refs(), "a view has no reference")
	other, err := v.Copy(nil)
	require.NoError(t, err)
	defer other.Close()
	want, err := v.ReadBytes()
	require.NoError(t, err)

	alias := v.Alias()
	ended, err := view(x)
	require.NoError(t, err)
	require.NoError(t, ended.Close())
	require.True(t, ended.Closed())
	require.False(t, x.Closed(), "Close of a view is about the view")

	// Readers that run while the tensor is closed get all elements or ErrClosed.
	var reading, readers sync.WaitGroup
	for range 4 {
		reading.Add(1)
		readers.Go(func() {
			begun := sync.OnceFunc(reading.Done)
			defer begun()
			for {
				got, err := v.ReadBytes()
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if err != nil || !bytes.Equal(want, got) {
					t.Error("read", got, err)
					return
				}
				begun()
			}
		})
	}
	reading.Wait()
	var written bytes.Buffer
	_, err = v.WriteTo(closingWriter{&written, x})
	require.NoError(t, err)
	require.Equal(t, want, written.Bytes(), "an operation that has begun keeps the memory")
	readers.Wait()

	require.True(t, v.Closed())
	require.NotEmpty(t, v.String())
	require.NotEmpty(t, v.Shape())
	for name, use := range uses {
		require.ErrorIs(t, use(v, other), os.ErrClosed, name)
	}
	require.NoError(t, v.Close())
	got, err := alias.ReadBytes()
	require.NoError(t, err)
	require.Equal(t, want, got, "the alias of a view has a separate life")
	again, err := alias.Unsqueeze(0)
	require.NoError(t, err)
	require.NoError(t, alias.Close())
	_, err = again.ReadBytes()
	require.ErrorIs(t, err, os.ErrClosed)
	require.Zero(t, x.Storage().Refs())
}

// closingWriter closes a tensor before it writes.
type closingWriter struct {
	w io.Writer
	x *tensor.Tensor
}

// Write closes the tensor and writes p.
func (c closingWriter) Write(p []byte) (int, error) {
	if err := c.x.Close(); err != nil {
		return 0, err
	}
	return c.w.Write(p)
}

// ascending returns an owned tensor for lives.
func ascending(t *testing.T, dev driver.Device) *tensor.Tensor {
	t.Helper()
	values := make([]int32, 24)
	for i := range values {
		values[i] = int32(i)
	}
	x, err := tensor.FromSlice(dev, shape{1, 4, 6}, values)
	require.NoError(t, err)
	return x
}

// A view lives as long as the tensor it was made from, in each kind of memory: not longer, and without a fault.
func TestViewsLiveAsLongAsTheirTensor(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		lives(t, func(t *testing.T) *tensor.Tensor { return ascending(t, openHost(t)) })
	})
	t.Run("opaque", func(t *testing.T) {
		lives(t, func(t *testing.T) *tensor.Tensor { return ascending(t, opaqueDevice{openHost(t)}) })
	})
	t.Run("pool", func(t *testing.T) {
		lives(t, func(t *testing.T) *tensor.Tensor {
			dev := openHost(t)
			pool := host.NewPool(dev.(*host.Device), host.PoolOptions{})
			t.Cleanup(func() { require.NoError(t, pool.Close()) })
			return ascending(t, pool)
		})
	})
	t.Run("storage", func(t *testing.T) { // the tensor is one of several of a storage
		lives(t, func(t *testing.T) *tensor.Tensor {
			whole := ascending(t, openHost(t))
			x, err := tensor.New(whole.Storage(), whole.Spec())
			require.NoError(t, err)
			require.NoError(t, whole.Close())
			return x
		})
	})
}
