//go:build !nocuda

package tensor_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Copies between memory of GPUs do not pass through the host. Strided tensors and overlapping ones still do.
func TestCopyBetweenDevices(t *testing.T) { // not parallel: the stand-in counts the objects of the process
	fake := cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 64 << 20})
	fake.Leaks(t)
	devices := make([]*cuda.Device, 2)
	for i := range devices {
		dev, err := cuda.Open(i)
		require.NoError(t, err)
		defer dev.Close()
		devices[i] = dev
	}
	values := make([]float32, 1000)
	for i := range values {
		values[i] = float32(i)
	}
	x, err := tensor.FromSlice(devices[0], tensor.Shape{100, 10}, values)
	x = closing(t, x, err)
	want, err := x.ReadBytes()
	require.NoError(t, err)
	// called reports whether copying from calls the driver's function.
	called := func(function string, from *tensor.Tensor, to *cuda.Device) bool {
		fake.FailFunction(function, 1, cu.ERROR_UNKNOWN)
		defer fake.FailNone()
		y, err := from.Copy(to)
		if fake.Failed() != "" {
			require.Error(t, err)
			return true
		}
		require.NoError(t, err)
		got, err := y.ReadBytes()
		require.NoError(t, errors.Join(err, y.Close()))
		if from == x {
			require.Equal(t, want, got)
		}
		return false
	}
	half, err := x.Narrow(0, 50, 50)
	half = closing(t, half, err)
	for _, to := range devices {
		for _, from := range []*tensor.Tensor{x, half} {
			require.True(t, called("cuMemcpyDtoD", from, to))
			y, err := from.Copy(to)
			require.NoError(t, err)
			for _, function := range []string{"cuMemcpyDtoH", "cuMemcpyHtoD"} {
				fake.FailFunction(function, 1, cu.ERROR_UNKNOWN)
				require.NoError(t, y.CopyFrom(from))
				require.Empty(t, fake.Failed())
			}
			fake.FailNone()
			equal, err := y.Equal(from)
			require.NoError(t, errors.Join(err, y.Close()))
			require.True(t, equal)
		}
	}
	columns, err := x.Transpose(0, 1)
	columns = closing(t, columns, err)
	require.True(t, called("cuMemcpyDtoH", columns, devices[0]))
	first, err := x.Narrow(0, 0, 60)
	first = closing(t, first, err)
	second, err := x.Narrow(0, 40, 60)
	second = closing(t, second, err)
	require.NoError(t, first.CopyFrom(second), "the ranges overlap")
	for i, want := range values[400:] {
		got, err := tensor.At[float32](first, int64(i)/10, int64(i)%10)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
