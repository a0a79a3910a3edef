package tensor_test

import (
	"fmt"
	"log"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestAllClose(t *testing.T) {
	drivertest.Leaks(t)
	inf, nan := math.Inf(1), math.NaN()
	devices(t, func(t *testing.T, dev driver.Device) {
		compare := func(x, y *tensor.Tensor, tol tensor.Tolerance) bool {
			all, err := x.AllClose(y, tol)
			require.NoError(t, err)
			return all
		}
		for _, c := range []struct {
			x, y float64
			tol  tensor.Tolerance
			want bool
		}{
			{1, 1, tensor.Tolerance{}, true},
			{1, 1 + 1e-12, tensor.Tolerance{}, false},
			{1, 1 + 1e-6, tensor.DefaultTolerance, true},
			{1, 1 + 1e-4, tensor.DefaultTolerance, false},
			{0, 1e-9, tensor.DefaultTolerance, true},
			{0, 1e-7, tensor.DefaultTolerance, false},
			{100, 110, tensor.Tolerance{Relative: 0.0909091}, true},  // of 110
			{110, 100, tensor.Tolerance{Relative: 0.0909091}, false}, // of 100
			{inf, inf, tensor.DefaultTolerance, true},
			{inf, -inf, tensor.Tolerance{Relative: 10}, false},
			{1, inf, tensor.Tolerance{Relative: 10}, false},
			{nan, nan, tensor.DefaultTolerance, false},
			{nan, nan, tensor.Tolerance{EqualNaN: true}, true},
			{nan, 1, tensor.Tolerance{EqualNaN: true, Absolute: 10}, false},
		} {
			x, err := tensor.Full(dev, tensor.Float64, shape{3}, c.x)
			x = closing(t, x, err)
			y, err := tensor.Full(dev, tensor.Float64, shape{3}, c.y)
			y = closing(t, y, err)
			require.Equal(t, c.want, compare(x, y, c.tol), "%v", c)
			z, err := tensor.FromSlice(dev, shape{3}, []complex128{complex(1, c.x), complex(c.x, 2), 0})
			z = closing(t, z, err)
			w, err := tensor.FromSlice(dev, shape{3}, []complex128{complex(1, c.y), complex(c.y, 2), 0})
			w = closing(t, w, err)
			if math.Abs(c.x) >= 1 && !math.IsInf(c.x, 0) && c.x == math.Trunc(c.x) && c.tol.Relative < 0.01 && !math.IsInf(c.y, 0) {
				require.Equal(t, c.want, compare(z, w, c.tol), "complex: %v", c)
			}
		}
		// The last of many, of two types, one of them across its memory.
		const n = 40_000
		x, err := tensor.Zeros(dev, tensor.BFloat16, shape{4, n})
		x = closing(t, x, err)
		y, err := tensor.Zeros(dev, tensor.Int64, shape{n, 4})
		y = closing(t, y, err)
		y, err = y.Transpose(0, 1)
		y = closing(t, y, err)
		require.True(t, compare(x, y, tensor.Tolerance{}))
		end, err := x.Narrow(1, n-1, 1)
		end = closing(t, end, err)
		require.NoError(t, end.Fill(2))
		require.False(t, compare(x, y, tensor.Tolerance{Absolute: 1}))
		require.True(t, compare(x, y, tensor.Tolerance{Absolute: 2}))
		small, err := x.To(nil, tensor.Float4E2M1FN)
		small = closing(t, small, err)
		require.True(t, compare(x, small, tensor.Tolerance{}), "2 is a number of four bits")
		_, err = x.AllClose(end, tensor.Tolerance{})
		require.ErrorIs(t, err, tensor.ErrShape)
	})
}

func TestStack(t *testing.T) {
	drivertest.Leaks(t)
	devices(t, func(t *testing.T, dev driver.Device) {
		x, err := tensor.FromSlice(dev, shape{2}, []int32{1, 2})
		x = closing(t, x, err)
		y, err := tensor.FromSlice(dev, shape{2}, []int32{3, 4})
		y = closing(t, y, err)
		for dim, want := range map[int][]float32{0: {1, 2, 3, 4}, 1: {1, 3, 2, 4}, -1: {1, 3, 2, 4}, -2: {1, 2, 3, 4}} {
			s, err := tensor.Stack(nil, dim, x, y)
			s = closing(t, s, err)
			require.Equal(t, shape{2, 2}, s.Shape())
			values, err := tensor.Float32s(s)
			require.NoError(t, err)
			require.Equal(t, want, values, "dimension %d", dim)
		}
		_, err = tensor.Stack(nil, 2, x, y)
		require.ErrorIs(t, err, tensor.ErrIndex)
		_, err = tensor.Stack(nil, 0)
		require.ErrorIs(t, err, tensor.ErrShape)
		z, err := tensor.Zeros(dev, tensor.Int32, shape{3})
		z = closing(t, z, err)
		_, err = tensor.Stack(nil, 0, x, z)
		require.ErrorIs(t, err, tensor.ErrShape)
	})
}

func ExampleTensor_AllClose() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{2}, []float32{1.001, 2})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	rounded, err := x.To(nil, tensor.BFloat16)
	if err != nil {
		log.Fatal(err)
	}
	defer rounded.Close()
	fmt.Println(rounded.AllClose(x, tensor.DefaultTolerance))
	fmt.Println(rounded.AllClose(x, tensor.Tolerance{Relative: 1e-2}))
	// Output:
	// false <nil>
	// true <nil>
}

func ExampleStack() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	x, err := tensor.Arange(dev, tensor.Int64, 0, 3, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	both, err := tensor.Stack(nil, 0, x, x)
	if err != nil {
		log.Fatal(err)
	}
	defer both.Close()
	fmt.Println(both)
	// Output:
	// tensor([[0, 1, 2],
	//         [0, 1, 2]])
}
