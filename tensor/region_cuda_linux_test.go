//go:build !nocuda

package tensor_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const scalePTX = ".version 7.0\n.target sm_50\n.visible .entry scale(.param .u64 p, .param .f32 a, .param .u32 n) { ret; }\n"

// A tensor is an argument of kernels: they see its elements, not the memory before them.
func TestTensorAsKernelArgument(t *testing.T) { // not parallel: the stand-in counts the objects of the process
	fake := cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 64 << 20})
	fake.Leaks(t)
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	defer dev.Close()
	module, err := dev.LoadModule([]byte(scalePTX))
	require.NoError(t, err)
	defer module.Close()
	f, err := module.Function("scale")
	require.NoError(t, err)
	type arguments struct {
		P *tensor.Tensor
		A float32
		N int
	}
	scale, err := cuda.KernelOf[arguments](f)
	require.NoError(t, err)

	x, err := tensor.FromSlice(dev, tensor.Shape{2, 2}, []float32{1, 2, 3, 4})
	x = closing(t, x, err)
	row, err := x.Select(0, 1)
	require.NoError(t, err)
	cfg := cuda.LaunchConfig{Block: cuda.Dim3{X: 2}}
	require.NoError(t, scale.Launch(cfg, arguments{row, 10, 2}))
	require.NoError(t, f.Launch(cfg, row, float32(2), 1))
	got, err := tensor.Float32s(x)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 60, 40}, got)

	column, err := x.Select(1, 0)
	require.NoError(t, err)
	require.ErrorIs(t, scale.Launch(cfg, arguments{column, 1, 1}), driver.ErrInvalid, "not contiguous")
	closed, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{1})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.ErrorIs(t, scale.Launch(cfg, arguments{closed, 1, 1}), os.ErrClosed)
}

// Elements of a strided tensor of a GPU calls the driver once for each large piece, not for each element or row.
func TestElementsOfAStridedTensorOfAGPU(t *testing.T) { // not parallel: the stand-in counts the calls of the process
	fake := cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 64 << 20})
	fake.Leaks(t)
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	defer dev.Close()
	for _, n := range []int64{10, 100, 1000, 1500} {
		values := make([]float32, n*n)
		for i := range values {
			values[i] = float32(i)
		}
		x, err := tensor.FromSlice(dev, tensor.Shape{n, n}, values)
		require.NoError(t, err)
		turned, err := x.Transpose(0, 1)
		require.NoError(t, err)
		column, err := x.Narrow(1, n/2, 1)
		require.NoError(t, err)
		for view, step := range map[*tensor.Tensor]int64{turned: 1, column: n} {
			before, i := fake.Calls(), int64(0)
			for v, err := range tensor.Elements[float32](view) {
				require.NoError(t, err)
				want := i/n + i%n*n
				if view == column {
					want = i*step + n/2
				}
				if v != float32(want) {
					t.Fatalf("element %d is %v, want %d", i, v, want)
				}
				i++
			}
			require.Equal(t, view.NumElements(), i)
			reads := 1 + 4*n*n/(4<<20)
			require.LessOrEqual(t, fake.Calls()-before, 3*reads, "calls for %d elements: a read sets and restores the context", i)
		}
		require.NoError(t, x.Close())
	}
}

// A view of GPU memory lives as long as the tensor it was made from.
func TestViewsOfAGPULiveAsLongAsTheirTensor(t *testing.T) { // not parallel: the stand-in counts the objects of the process
	fake := cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 64 << 20})
	fake.Leaks(t)
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	defer dev.Close()
	x := ascending(t, dev) // the first use of the device creates what it keeps
	require.NoError(t, x.Close())
	lives(t, func(t *testing.T) *tensor.Tensor { return ascending(t, dev) })
}
