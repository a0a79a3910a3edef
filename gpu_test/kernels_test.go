//go:build linux

package gpu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// kernel loads one of the kernels of kernelsPTX.
func kernel(tb testing.TB, dev *cuda.Device, name string) *cuda.Function {
	tb.Helper()
	mod, err := dev.LoadModule([]byte(kernelsPTX))
	keep(tb, mod, err)
	f, err := mod.Function(name)
	require.NoError(tb, err)
	return f
}

// onDevice copies values to a new tensor on the device.
func onDevice(tb testing.TB, dev driver.Device, shape tensor.Shape, values []float32) (*tensor.Tensor, *cuda.Memory) {
	tb.Helper()
	x, err := tensor.FromSlice(dev, shape, values)
	keep(tb, x, err)
	return x, x.Storage().Memory().(*cuda.Memory)
}

// noise returns n reproducible values in [-1, 1).
func noise(n int, seed uint32) []float32 {
	v := make([]float32, n)
	for i := range v {
		seed = seed*1664525 + 1013904223
		v[i] = float32(int32(seed)) / (1 << 31)
	}
	return v
}

func TestSaxpy(t *testing.T) {
	dev := openDevice(t)
	f := kernel(t, dev, "saxpy")
	for _, n := range []int{1, 31, 1024, 100_003} {
		a, xs, ys := float32(1.25), noise(n, 1), noise(n, 2)
		_, x := onDevice(t, dev, tensor.Shape{int64(n)}, xs)
		yt, y := onDevice(t, dev, tensor.Shape{int64(n)}, ys)
		blocks := cuda.Dim3{X: uint32(n+255) / 256}
		require.NoError(t, f.Launch(cuda.LaunchConfig{Grid: blocks, Block: cuda.Dim3{X: 256}}, a, x, y, n))
		require.NoError(t, dev.Synchronize())
		got, err := tensor.Float32s(yt)
		require.NoError(t, err)
		for i := range got {
			// A float64 holds the product of two float32 exactly, so this equals the fused operation except for rare
			// double rounding.
			want := float32(math.FMA(float64(a), float64(xs[i]), float64(ys[i])))
			require.InDelta(t, want, got[i], 1e-7, "element %d of %d", i, n)
		}
	}
}

func TestMatmul(t *testing.T) {
	dev := openDevice(t)
	f := kernel(t, dev, "matmul")
	for _, s := range []struct{ m, n, k int }{{1, 1, 1}, {3, 5, 7}, {64, 48, 33}, {33, 65, 129}} {
		as, bs := noise(s.m*s.k, 3), noise(s.k*s.n, 4)
		_, a := onDevice(t, dev, tensor.Shape{int64(s.m), int64(s.k)}, as)
		_, b := onDevice(t, dev, tensor.Shape{int64(s.k), int64(s.n)}, bs)
		ct, c := onDevice(t, dev, tensor.Shape{int64(s.m), int64(s.n)}, make([]float32, s.m*s.n))
		cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: uint32(s.n+15) / 16, Y: uint32(s.m+15) / 16}, Block: cuda.Dim3{X: 16, Y: 16}}
		require.NoError(t, f.Launch(cfg, a, b, c, s.m, s.n, s.k))
		require.NoError(t, dev.Synchronize())
		got, err := tensor.Float32s(ct)
		require.NoError(t, err)
		for row := range s.m {
			for col := range s.n {
				var want float64
				for i := range s.k {
					want += float64(as[row*s.k+i]) * float64(bs[i*s.n+col])
				}
				require.InDelta(t, want, got[row*s.n+col], 1e-4, "row %d, column %d of %v", row, col, s)
			}
		}
	}
}

// A graph that recorded the launch computes on the new bytes when it is launched again.
func TestMatmulGraph(t *testing.T) {
	dev := openDevice(t)
	f := kernel(t, dev, "matmul")
	stream, err := dev.NewStream(cuda.StreamOptions{})
	keep(t, stream, err)
	_, a := onDevice(t, dev, tensor.Shape{2, 2}, []float32{1, 2, 3, 4})
	_, b := onDevice(t, dev, tensor.Shape{2, 2}, []float32{1, 0, 0, 1})
	ct, c := onDevice(t, dev, tensor.Shape{2, 2}, make([]float32, 4))
	graph, err := stream.Capture(func() error {
		return f.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 2, Y: 2}, Stream: stream}, a, b, c, 2, 2, 2)
	})
	keep(t, graph, err)
	exec, err := graph.Instantiate()
	keep(t, exec, err)
	for _, want := range [][]float32{{1, 2, 3, 4}, {2, 4, 6, 8}} {
		require.NoError(t, exec.Launch(stream))
		require.NoError(t, stream.Synchronize())
		got, err := tensor.Float32s(ct)
		require.NoError(t, err)
		require.Equal(t, want, got)
		other, err := tensor.FromSlice(dev, tensor.Shape{2, 2}, []float32{2, 0, 0, 2})
		keep(t, other, err)
		data := make([]byte, 16)
		_, err = other.Storage().Memory().ReadAt(data, 0)
		require.NoError(t, err)
		_, err = b.WriteAt(data, 0)
		require.NoError(t, err)
	}
}

func TestBadPTX(t *testing.T) {
	realOnly(t, "it compiles nothing")
	dev := openDevice(t)
	_, err := dev.LoadModule([]byte(".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry x() { nonsense; }\n"))
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.ErrorContains(t, err, "nonsense", "what the compiler complains about")
}

func TestArgumentsAreChecked(t *testing.T) {
	dev := openDevice(t)
	f := kernel(t, dev, "saxpy")
	require.ErrorIs(t, f.Launch(cuda.LaunchConfig{}, float32(1)), driver.ErrInvalid, "too few")
	require.ErrorIs(t, f.Launch(cuda.LaunchConfig{}, 1.0, uint64(0), uint64(0), uint32(0)), driver.ErrInvalid, "8 bytes for a float32")
}
