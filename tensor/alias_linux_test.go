package tensor_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// forgotten returns the slice of a tensor that is no longer reachable.
//
//go:noinline
func forgotten(t *testing.T, dev driver.Device) []int32 {
	x, err := tensor.FromSlice(dev, shape{4}, []int32{1, 2, 3, 4})
	require.NoError(t, err)
	data, err := tensor.Data[int32](x)
	require.NoError(t, err)
	return data
}

// The slice of an unreachable tensor never becomes another tensor's memory.
func TestSliceOutlivesCollection(t *testing.T) {
	dev := openHost(t)
	told := make(chan driver.Leak, 1)
	driver.OnLeak(func(l driver.Leak) {
		if l.Kept {
			told <- l
		}
	})
	defer driver.OnLeak(nil)
	data := forgotten(t, dev)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for found := false; !found; {
		runtime.GC()
		select {
		case l := <-told:
			require.Equal(t, driver.Leak{Device: "host", Kind: "memory", Bytes: 16, Kept: true}, l)
			found = true
		case <-ctx.Done():
			t.Fatal("nothing was reported")
		case <-time.After(time.Millisecond):
		}
	}
	for i := range int32(10) {
		x, err := tensor.FromSlice(dev, shape{4}, []int32{-i, -i, -i, -i})
		x = closing(t, x, err)
		require.Equal(t, []int32{1 + i, 2, 3, 4}, data)
		data[0]++
		require.Equal(t, []int32{-i, -i, -i, -i}, ints(t, x))
	}
}

// twice returns a storage with the same bytes as x, starting at offset, through another mapping.
func twice(t *testing.T, x *tensor.Tensor, offset int64) *tensor.Storage {
	t.Helper()
	h, err := x.Storage().Memory().Export()
	require.NoError(t, err)
	defer h.Close()
	h.Offset += offset
	h.Bytes -= offset
	mem, err := x.Device().Import(h, driver.ImportOptions{Writable: true})
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// Copies between overlapping tensors are correct in both directions, through one mapping and through two.
func TestCopyBetweenMappingsOfOneMemory(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	const n, part = 3<<20 + 4096, 2 << 20 // more than one copy step
	for _, move := range []struct{ from, to int64 }{{0, 777}, {777, 0}, {0, 0}, {part / 2, 0}} {
		for _, mapped := range []int64{0, 256} {
			x, err := tensor.Zeros(dev, tensor.Uint8, shape{n})
			x = closing(t, x, err)
			want := make([]byte, n)
			for i := range want {
				want[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17
			}
			require.NoError(t, x.FillFrom(bytes.NewReader(want)))
			other := twice(t, x, mapped)
			from, err := tensor.New(x.Storage(), tensor.Spec{DType: tensor.Uint8, Shape: shape{part}, ByteOffset: move.from + mapped})
			from = closing(t, from, err)
			to, err := tensor.New(other, tensor.Spec{DType: tensor.Uint8, Shape: shape{part}, ByteOffset: move.to})
			to = closing(t, to, err)
			require.NoError(t, to.CopyFrom(from))
			copy(want[move.to+mapped:], want[move.from+mapped:][:part])
			got, err := x.ReadBytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "from %d to %d, mapped at %d", move.from, move.to, mapped)
		}
	}
}

// Sealing memory that is being filled and copied: each write succeeds or is refused, and none crashes.
func TestSealDuringWrites(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	const n = 4 << 20
	src, err := tensor.Zeros(dev, tensor.Uint8, shape{n})
	src = closing(t, src, err)
	strided, err := src.View(tensor.Uint8)
	strided = closing(t, strided, err)
	for range 20 {
		x, err := tensor.Zeros(dev, tensor.Uint8, shape{n})
		x = closing(t, x, err)
		var writers, writing sync.WaitGroup
		for _, write := range []func() error{
			func() error { return x.CopyFrom(strided) },
			func() error { return x.FillFrom(bytes.NewReader(make([]byte, n))) },
			x.Zero,
		} {
			writing.Add(1)
			writers.Go(func() {
				begun := sync.OnceFunc(writing.Done)
				defer begun()
				for i := 0; ; i++ {
					if i == 1 { // probably during a write
						begun()
					}
					err := write()
					if errors.Is(err, driver.ErrReadOnly) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		writing.Wait()
		time.Sleep(rand.N(2 * time.Millisecond)) // if only one goroutine is woken at a time, writes end before this one runs
		for err = x.Storage().Seal(); errors.Is(err, driver.ErrBusy); err = x.Storage().Seal() {
			time.Sleep(10 * time.Microsecond)
		}
		require.NoError(t, err)
		writers.Wait()
	}
}

// sealing seals a tensor's memory during a read.
type sealing struct {
	x    *tensor.Tensor
	seen error
}

// Read fills p with ones.
func (s *sealing) Read(p []byte) (int, error) {
	s.seen = s.x.Storage().Seal()
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}

// A seal during a fill does not interrupt the fill.
func TestSealInsideFill(t *testing.T) {
	t.Parallel()
	x, err := tensor.Zeros(openHost(t), tensor.Uint8, shape{100})
	x = closing(t, x, err)
	s := &sealing{x: x}
	require.NoError(t, x.FillFrom(s))
	require.ErrorIs(t, s.seen, driver.ErrBusy)
	require.NoError(t, x.Storage().Seal())
	require.ErrorIs(t, x.FillFrom(s), driver.ErrReadOnly)
	require.ErrorIs(t, x.Zero(), driver.ErrReadOnly)
	require.Equal(t, uint8(1), must(tensor.At[uint8](x, 99))(t))
}

// Writing out a tensor of lazily allocated memory, also element by element, allocates no page.
func TestReadingHolesMakesNoMemory(t *testing.T) {
	t.Parallel()
	dev, err := host.Open(host.Lazy())
	require.NoError(t, err)
	defer dev.Close()
	x, err := tensor.Zeros(dev, tensor.Float32, shape{4 << 20})
	x = closing(t, x, err)
	pages := func() int64 {
		d, err := x.Storage().Memory().Describe()
		require.NoError(t, err)
		require.EqualValues(t, 16<<20, d.Size)
		return d.Allocated
	}
	require.Zero(t, pages())
	n, err := x.WriteTo(io.Discard)
	require.NoError(t, err)
	require.EqualValues(t, 16<<20, n)
	_ = x.String()
	_, err = tensor.Float32s(x)
	require.NoError(t, err)
	row, err := x.Reshape(shape{2, 2 << 20})
	row = closing(t, row, err)
	row, err = row.Transpose(0, 1)
	row = closing(t, row, err)
	_, err = row.WriteTo(io.Discard)
	require.NoError(t, err)
	require.Zero(t, pages(), "reading made pages")
	require.NoError(t, x.Zero())
	require.EqualValues(t, 16<<20, pages())
}
