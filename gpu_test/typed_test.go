//go:build linux

package gpu_test

import (
	"context"
	"errors"
	"math"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// supported skips the test if the driver or the device lacks the feature, also with GPU_TEST=require. It skips the test as
// well if a container does not permit the feature.
func supported(tb testing.TB, err error) {
	tb.Helper()
	var e *cuda.Error
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		tb.Skipf("not supported here: %v", err)
	case errors.As(err, &e) && e.Code == cu.ERROR_NOT_PERMITTED:
		cannot(tb, "not permitted: %v", err)
	}
	require.NoError(tb, err)
}

func stream(tb testing.TB, dev *cuda.Device) *cuda.Stream {
	tb.Helper()
	s, err := dev.NewStream(cuda.StreamOptions{})
	return keep(tb, s, err)
}

func buffer[T any](tb testing.TB, dev *cuda.Device, n int) *cuda.Buffer[T] {
	tb.Helper()
	b, err := cuda.NewBuffer[T](dev, n)
	return keep(tb, b, err)
}

func values[T any](tb testing.TB, b *cuda.Buffer[T]) []T {
	tb.Helper()
	v, err := b.Values()
	require.NoError(tb, err)
	return v
}

// saxpyArgs are the arguments of the kernel saxpy.
type saxpyArgs struct {
	A float32
	X *tensor.Tensor
	Y *cuda.Buffer[float32]
	N int
}

func TestTypedKernelOnTensor(t *testing.T) {
	dev := openDevice(t)
	k, err := cuda.KernelOf[saxpyArgs](kernel(t, dev, "saxpy"))
	require.NoError(t, err)
	x, _ := onDevice(t, dev, tensor.Shape{100}, noise(100, 1))
	y := buffer[float32](t, dev, 100)
	s := stream(t, dev)
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: 1}, Block: cuda.Dim3{X: 128}, Stream: s}
	require.NoError(t, k.Launch(cfg, saxpyArgs{A: 3, X: x, Y: y, N: 100}))
	require.NoError(t, s.WaitContext(t.Context()))
	for i, got := range values(t, y) {
		require.InDelta(t, 3*float64(noise(100, 1)[i]), got, 1e-6)
	}
	_, err = cuda.KernelOf[struct{ A float64 }](kernel(t, dev, "saxpy"))
	require.ErrorIs(t, err, driver.ErrInvalid, "the driver reports the parameters")
}

func TestLaunchAttributesOnDevice(t *testing.T) {
	dev := openDevice(t)
	p, err := dev.Properties()
	require.NoError(t, err)
	f, s := kernel(t, dev, "saxpy"), stream(t, dev)
	x, y := buffer[float32](t, dev, 4), buffer[float32](t, dev, 4)
	launch := func(grid cuda.Dim3, attrs ...cuda.LaunchAttribute) error {
		return f.Launch(cuda.LaunchConfig{Grid: grid, Block: cuda.Dim3{X: 32}, Stream: s, Attributes: attrs}, float32(1), x, y, 4)
	}
	started, err := dev.NewEvent(cuda.EventOptions{})
	keep(t, started, err)
	supported(t, launch(cuda.Dim3{X: 1}, cuda.LaunchPriority(0), cuda.SharedCarveout(50)))
	if p.CooperativeLaunch {
		require.NoError(t, launch(cuda.Dim3{X: 1}, cuda.Cooperative()))
		var e *cuda.Error
		require.ErrorAs(t, launch(cuda.Dim3{X: math.MaxInt32}, cuda.Cooperative()), &e)
		require.Equal(t, cu.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, e.Code)
	}
	if p.Clusters && p.ComputeMajor >= 9 {
		require.NoError(t, launch(cuda.Dim3{X: 4}, cuda.ClusterSize(cuda.Dim3{X: 2})))
		require.Error(t, launch(cuda.Dim3{X: 3}, cuda.ClusterSize(cuda.Dim3{X: 2})))
		size, err := f.MaxClusterBlocks(cuda.LaunchConfig{Grid: cuda.Dim3{X: 16}, Block: cuda.Dim3{X: 32}})
		require.NoError(t, err)
		require.GreaterOrEqual(t, size, 8)
	}
	if err := launch(cuda.Dim3{X: 1}, cuda.RecordStart(started)); !errors.Is(err, errors.ErrUnsupported) {
		require.NoError(t, err)
		require.NoError(t, started.Synchronize())
	}
	require.NoError(t, s.Synchronize())
}

func TestTypedCopies(t *testing.T) {
	dev := openDevice(t)
	s := stream(t, dev)
	up, err := cuda.NewHostBuffer[uint32](dev, 24)
	keep(t, up, err)
	down, err := cuda.NewHostBuffer[uint32](dev, 4)
	keep(t, down, err)
	for i := range up.Values() {
		up.Values()[i] = uint32(i)
	}
	pitched, pitch, err := dev.AllocPitched(24, 4, 4)
	keep(t, pitched, err)
	on := cuda.Box{Operand: cuda.Operand{Memory: pitched}, RowPitch: pitch}
	require.NoError(t, s.CopyBox(cuda.BoxCopy{Dst: on, Src: cuda.Box{Operand: cuda.Operand{Host: up.Memory()}}, Width: 24, Height: 4}))
	// The box of 1 column and 2 rows from row 0, column 3, in two planes of 2 rows.
	from := on
	from.Offset, from.PlaneRows = 12, 2
	require.NoError(t, s.CopyBox(cuda.BoxCopy{Dst: cuda.Box{Operand: cuda.Operand{Host: down.Memory()}}, Src: from, Width: 4, Height: 2, Depth: 2}))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{3, 9, 15, 21}, down.Values())

	a, b := buffer[uint32](t, dev, 4), buffer[uint32](t, dev, 4)
	supported(t, s.CopyBatch([]cuda.Copy{
		{Dst: cuda.Operand{Memory: a.Memory()}, Src: cuda.Operand{Host: up.Memory(), Offset: 4}, Bytes: 16},
		{Dst: cuda.Operand{Memory: b.Memory()}, Src: cuda.Operand{Host: up.Memory(), Offset: 40}, Bytes: 16},
	}))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{1, 2, 3, 4}, values(t, a))
	require.Equal(t, []uint32{10, 11, 12, 13}, values(t, b))
}

func TestManagedMemory(t *testing.T) {
	dev := openDevice(t)
	m, err := dev.AllocManaged(1 << 16)
	supported(t, err)
	keep(t, m, nil)
	copy(m.Data(), "host")
	s := stream(t, dev)
	p, err := dev.Properties()
	require.NoError(t, err)
	if p.ConcurrentManaged {
		require.NoError(t, m.Advise(0, m.Bytes(), cuda.PreferLocation, dev.Location()))
		require.NoError(t, s.Prefetch(m, 0, m.Bytes(), dev.Location()))
		require.NoError(t, s.Synchronize())
		at, ok, err := m.LastPrefetch(0, m.Bytes())
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, dev.Location(), at)
	}
	require.NoError(t, s.Fill8(m.Memory, 1, 2, 'a'))
	require.NoError(t, s.Synchronize())
	require.Equal(t, "haat", string(m.Data()[:4]))
}

func TestWrappedHandles(t *testing.T) {
	dev := openDevice(t)
	var h cu.Stream
	var p cu.DevicePtr
	require.NoError(t, dev.Do(func() error {
		if err := cu.StreamCreate(&h, cu.STREAM_NON_BLOCKING).Err(); err != nil {
			return err
		}
		return cu.MemAlloc(&p, 4096).Err()
	}))
	s, err := dev.WrapStream(h, cuda.Owned)
	keep(t, s, err)
	m, err := dev.WrapMemory(p, 4096, cuda.Owned)
	keep(t, m, err)
	require.NoError(t, s.Fill8(m, 0, 4096, 5))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 2)
	_, err = m.ReadAt(got, 4094)
	require.NoError(t, err)
	require.Equal(t, []byte{5, 5}, got)
	var e cu.Event
	require.NoError(t, dev.Call(func(c cu.Context) error { return c.EventCreate(&e, cu.EVENT_DISABLE_TIMING).Err() }))
	event, err := dev.WrapEvent(e, cuda.Owned)
	keep(t, event, err)
	require.NoError(t, event.Record(s))
	require.NoError(t, event.Synchronize())
	whole, err := cuda.WrapContext(dev.Context(), cuda.Borrowed)
	keep(t, whole, err)
	require.NoError(t, whole.Synchronize())
	_, err = dev.WrapMemory(p, 1<<40, cuda.Borrowed)
	require.ErrorIs(t, err, driver.ErrRange)
	_, err = dev.WrapMemory(1234, 1, cuda.Borrowed)
	require.Error(t, err)
}

func TestHostFunctions(t *testing.T) {
	dev := openDevice(t)
	s, flag := stream(t, dev), buffer[uint64](t, dev, 1)
	var calls atomic.Int64
	inside := cu.SUCCESS
	require.NoError(t, s.LaunchHost(func() { calls.Add(1); inside = cu.StreamQuery(0) }))
	require.NoError(t, s.WaitContext(t.Context()))
	require.EqualValues(t, 1, calls.Load())
	require.NotEqual(t, cu.SUCCESS, inside, "a host function must not call CUDA")

	supported(t, s.WaitValue64(flag.Memory(), 0, 1)) // WSL has no 64-bit operations on memory
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.WaitContext(ctx), context.DeadlineExceeded)
	other := stream(t, dev)
	require.NoError(t, other.WriteValue64(flag.Memory(), 0, 1))
	require.NoError(t, s.WaitContext(t.Context()))
}

func TestMemOpsOnDevice(t *testing.T) {
	dev := openDevice(t)
	m, waiter, writer := buffer[uint32](t, dev, 4), stream(t, dev), stream(t, dev)
	err := waiter.MemOps(cuda.Wait32(m.Memory(), 0, cuda.Equal, 7), cuda.Wait32(m.Memory(), 4, cuda.AnyBit, 4), cuda.Write32(m.Memory(), 8, 9))
	supported(t, err)
	require.NoError(t, writer.MemOps(cuda.Write32(m.Memory(), 0, 7), cuda.Write32(m.Memory(), 4, 12)))
	require.NoError(t, waiter.Synchronize())
	require.Equal(t, []uint32{7, 12, 9, 0}, values(t, m))
}

func TestPinnedSlab(t *testing.T) {
	dev := openDevice(t)
	hd, err := host.Open()
	keep(t, hd, err)
	slab, err := hd.Alloc(8192)
	keep(t, slab, err)
	_, err = slab.WriteAt([]byte("slab"), 0)
	require.NoError(t, err)
	h, err := slab.Export()
	require.NoError(t, err)
	defer h.Close()
	imported, err := hd.Import(h, driver.ImportOptions{})
	keep(t, imported, err)
	pinned, err := dev.PinMemory(imported.(driver.Mapped))
	supported(t, err)
	keep(t, pinned, nil)
	s, b := stream(t, dev), buffer[byte](t, dev, 4)
	require.NoError(t, s.CopyToDevice(b.Memory(), 0, pinned, 0, 4))
	require.NoError(t, s.Synchronize())
	require.Equal(t, "slab", string(values(t, b)))
}

func TestSharedPoolHandles(t *testing.T) {
	dev := openDevice(t)
	pool, err := dev.NewSharedPool(cuda.FileHandle)
	supported(t, err)
	keep(t, pool, nil)
	s := stream(t, dev)
	m, err := s.Alloc(pool, 4096)
	keep(t, m, err)
	require.NoError(t, s.Synchronize())
	require.NoError(t, fill(m, 21))
	f, err := pool.ExportFile()
	supported(t, err)
	keep(t, f, nil)
	handle, err := pool.ExportMemory(m)
	require.NoError(t, err)
	reader := open(t, driver.CUDAFD)
	r, _ := reader.exchange(request{Do: "import from pool", Key: "p", Blob: handle[:]}, f)
	require.Empty(t, r.Error)
	reader.must(request{Do: "verify", Key: "p", Seed: 21})
	reader.must(request{Do: "close", Key: "p"})
	reader.kill()
	access, err := pool.Access(dev)
	require.NoError(t, err)
	require.Equal(t, cuda.ReadWrite, access)
}

func TestLibraryAndCompiler(t *testing.T) {
	dev := openDevice(t)
	l, err := dev.LoadLibrary([]byte(kernelsPTX), cuda.JITOptions{Verbose: true, Optimization: cuda.OptimizeO2})
	supported(t, err)
	keep(t, l, nil)
	f, err := l.Function("saxpy")
	require.NoError(t, err)
	x, y := buffer[float32](t, dev, 4), buffer[float32](t, dev, 4)
	require.NoError(t, x.Write([]float32{1, 2, 3, 4}, 0))
	require.NoError(t, f.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 4}}, float32(2), x, y, 4))
	require.NoError(t, dev.Synchronize())
	require.Equal(t, []float32{2, 4, 6, 8}, values(t, y))
	_, err = l.Function("nothing")
	require.ErrorIs(t, err, cuda.ErrNoSymbol)
	threads, blocks, err := f.SuggestBlockFunc(func(threads int) uint64 { return uint64(4 * threads) }, 0)
	require.NoError(t, err)
	require.Positive(t, threads)
	require.Positive(t, blocks)
	shared, err := f.AvailableSharedBytes(1, 128)
	require.NoError(t, err)
	require.Positive(t, shared)
}

func TestMulticastObject(t *testing.T) {
	dev := openDevice(t)
	p, err := dev.Properties()
	require.NoError(t, err)
	if !p.Multicast {
		t.Skip("the device has no multicast")
	}
	size, err := dev.MulticastGranularity(1, 0, true)
	supported(t, err)
	m, err := dev.NewMulticast(1, size, 0)
	var e *cuda.Error
	if errors.As(err, &e) && e.Code != cu.ERROR_INVALID_VALUE {
		t.Skipf("no multicast of one device: %v", err)
	}
	supported(t, err)
	keep(t, m, nil)
	a, err := dev.CreateAllocation(size, 0)
	keep(t, a, err)
	require.NoError(t, m.Bind(0, a, 0, size))
	require.NoError(t, m.Unbind(dev, 0, size))
}

func TestContextOfMultiprocessors(t *testing.T) {
	dev := openDevice(t)
	all, err := dev.Multiprocessors()
	supported(t, err)
	parts, _, err := all.Split(1, 2)
	supported(t, err)
	require.Less(t, parts[0].Count(), all.Count())
	part, err := parts[0].NewContext()
	supported(t, err)
	keep(t, part, nil)
	s, x, y := stream(t, part), buffer[float32](t, dev, 4), buffer[float32](t, dev, 4)
	f := kernel(t, part, "saxpy")
	require.NoError(t, f.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 4}, Stream: s}, float32(2), x, y, 4))
	require.NoError(t, s.Synchronize())
}

func TestCheckpointOfAProcess(t *testing.T) {
	needGPU(t)
	state, err := cuda.Process{PID: os.Getpid()}.State()
	supported(t, err)
	require.Equal(t, cuda.ProcessRunning, state)
	other := open(t, driver.CUDAFD)
	p := cuda.Process{PID: int(other.must(request{Do: "pid"}).Offset)}
	supported(t, p.Lock(time.Second))
	supported(t, p.Checkpoint())
	state, err = p.State()
	require.NoError(t, err)
	require.Equal(t, cuda.ProcessCheckpointed, state)
	require.NoError(t, p.Restore(nil))
	require.NoError(t, p.Unlock())
	other.must(request{Do: "free bytes"})
}
