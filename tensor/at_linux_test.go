package tensor_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// countedMemory counts the calls of methods that make system calls.
type countedMemory struct {
	driver.Mapped
	calls atomic.Int64
}

func (m *countedMemory) Describe() (driver.Description, error) {
	m.calls.Add(1)
	return m.Mapped.Describe()
}

func (m *countedMemory) ReadAt(p []byte, off int64) (int, error) {
	m.calls.Add(1)
	return m.Mapped.ReadAt(p, off)
}

// At makes no system call after the first one, also for other tensors of the storage.
func TestAtWithoutSystemCalls(t *testing.T) {
	dev := openHost(t)
	mem, err := dev.Alloc(1 << 20)
	require.NoError(t, err)
	counted := &countedMemory{Mapped: mem.(driver.Mapped)}
	s := tensor.NewStorage(counted)
	x, err := tensor.New(s, tensor.Spec{DType: tensor.Int32, Shape: shape{100, 200}, Strides: tensor.Strides{1, 100}, ByteOffset: 4})
	x = closing(t, x, err)
	y, err := tensor.New(s.ReadOnly(), tensor.Spec{DType: tensor.Float64, Shape: shape{10}})
	y = closing(t, y, err)
	require.NoError(t, s.Close())
	require.Zero(t, must(tensor.At[int32](x, 0, 0))(t))
	first := counted.calls.Load()
	for i := range int64(100) {
		_ = must(tensor.At[int32](x, i, -i-1))(t)
	}
	require.Zero(t, must(tensor.At[float64](y, 9))(t))
	require.Equal(t, first, counted.calls.Load())
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = tensor.At[int32](x, 5, 6) }), 2.0)
}

// At of memory without pages allocates none.
func TestAtOfHoles(t *testing.T) {
	t.Parallel()
	dev, err := host.Open(host.Lazy())
	require.NoError(t, err)
	defer dev.Close()
	x, err := tensor.Zeros(dev, tensor.Float32, shape{1 << 20})
	x = closing(t, x, err)
	for i := range int64(20) {
		require.Zero(t, must(tensor.At[float32](x, i*4096))(t))
	}
	d, err := x.Storage().Memory().Describe()
	require.NoError(t, err)
	require.Zero(t, d.Allocated)
	require.NoError(t, x.Fill(2))
	require.Equal(t, float32(2), must(tensor.At[float32](x, -1))(t))
}

// BenchmarkAt reads elements one by one, beside a loop over the slice.
func BenchmarkAt(b *testing.B) {
	x, err := tensor.Full(openHost(b), tensor.Float32, shape{1000, 1000}, 1)
	x = closing(b, x, err)
	turned, err := x.Transpose(0, 1)
	turned = closing(b, turned, err)
	data, err := tensor.Data[float32](x)
	require.NoError(b, err)
	sum := float32(0)
	b.Run("loop", func(b *testing.B) {
		for i := range b.N {
			sum += data[i%1000*1000+i/1000%1000]
		}
	})
	for name, t := range map[string]*tensor.Tensor{"contiguous": x, "transposed": turned} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range int64(b.N) {
				v, err := tensor.At[float32](t, i%1000, i/1000%1000)
				if err != nil {
					b.Fatal(err)
				}
				sum += v
			}
		})
	}
	require.NotZero(b, sum)
}
