package cuda_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	hostdevice "github.com/sharedtensor/sharedtensor/driver/host"
)

// part is a part of memory, like the elements of a tensor.
type part struct {
	mem    driver.Memory
	offset int64
	err    error
}

func (p *part) Region() (driver.Memory, int64, error) { return p.mem, p.offset, p.err }

// saxpyArgs are the arguments of saxpy, each of another kind.
type saxpyArgs struct {
	A float32
	_ int
	X *part
	Y *cuda.Buffer[float32]
	N int
}

func TestKernel(t *testing.T) {
	d := openDevice(t, 0)
	k, err := cuda.KernelOf[saxpyArgs](function(t, loadKernels(t, d), "saxpy"))
	require.NoError(t, err)
	require.Equal(t, "saxpy", k.Function().Name())
	const n = 100
	whole := alloc(t, d, 8*n)
	_, err = whole.WriteAt(floats(n, func(i int) float32 { return float32(i) }), 4*n)
	require.NoError(t, err)
	row := &part{mem: whole, offset: 4 * n}
	y, err := cuda.NewBuffer[float32](d, 2*n)
	keep(t, y, err)
	half, err := y.Slice(n, 2*n)
	require.NoError(t, err)
	s := newStream(t, d)
	require.NoError(t, half.Fill(s, 0.5))
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: 1}, Block: cuda.Dim3{X: 128}, Stream: s}
	require.NoError(t, k.Launch(cfg, saxpyArgs{A: 2, X: row, Y: half, N: n}))
	require.NoError(t, s.Synchronize())
	got, err := y.Values()
	require.NoError(t, err)
	for i := range n {
		require.Zero(t, got[i])
		require.Equal(t, 2*float32(i)+0.5, got[n+i])
	}

	onHost, err := keepHost(t).Alloc(4 * n)
	keep(t, onHost, err)
	closed, err := d.AllocMemory(4 * n)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		args saxpyArgs
		want error
	}{
		"no region":         {saxpyArgs{Y: half}, driver.ErrInvalid},
		"no buffer":         {saxpyArgs{X: row}, driver.ErrInvalid},
		"refused":           {saxpyArgs{X: &part{err: broken}, Y: half}, broken},
		"host memory":       {saxpyArgs{X: &part{mem: onHost}, Y: half}, driver.ErrInvalid},
		"closed memory":     {saxpyArgs{X: &part{mem: closed}, Y: half}, os.ErrClosed},
		"int does not fit":  {saxpyArgs{X: row, Y: half, N: 1 << 40}, driver.ErrInvalid},
		"int is below zero": {saxpyArgs{X: row, Y: half, N: -1<<31 - 1}, driver.ErrInvalid},
	} {
		require.ErrorIs(t, k.Launch(cfg, c.args), c.want, name)
	}
	require.NoError(t, s.Synchronize())
}

func keepHost(t testing.TB) driver.Device {
	d, err := hostdevice.Open()
	return keep(t, d, err)
}

func TestKernelTypesAreChecked(t *testing.T) {
	d := openDevice(t, 0)
	mod := loadKernels(t, d)
	saxpy, shapes := function(t, mod, "saxpy"), function(t, mod, "shapes")
	for name, err := range map[string]error{
		"not a struct":   second(cuda.KernelOf[int](saxpy)),
		"too few fields": second(cuda.KernelOf[struct{ A float32 }](saxpy)),
		"too many fields": second(cuda.KernelOf[struct {
			A    float32
			X, Y *cuda.Memory
			N, M uint32
		}](saxpy)),
		"float64": second(cuda.KernelOf[struct {
			A    float64
			X, Y *cuda.Memory
			N    uint32
		}](saxpy)),
		"a Go pointer": second(cuda.KernelOf[struct {
			A    float32
			X, Y *float32
			N    uint32
		}](saxpy)),
		"int for a struct": second(cuda.KernelOf[struct {
			S int
			B bool
			H int16
			L uint
			D float64
		}](shapes)),
	} {
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	_, err := cuda.KernelOf[struct {
		S struct {
			A int8
			B float64
			C [2]uint32
		}
		B bool
		H int16
		L uint
		D float64
	}](shapes)
	require.NoError(t, err)
	empty, err := cuda.KernelOf[struct{}](function(t, mod, "empty"))
	require.NoError(t, err)
	require.NoError(t, empty.Launch(cuda.LaunchConfig{}, struct{}{}))
	require.NoError(t, d.Synchronize())
}

func second[T any](_ T, err error) error { return err }

// A launch of a typed kernel allocates at most what the call of the driver does.
func TestKernelAllocations(t *testing.T) {
	d := openDevice(t, 0)
	f := function(t, loadKernels(t, d), "fill")
	type args struct {
		P        *cuda.Memory
		Value, N uint32
	}
	k, err := cuda.KernelOf[args](f)
	require.NoError(t, err)
	m, s := alloc(t, d, 64), newStream(t, d)
	cfg := cuda.LaunchConfig{Stream: s}
	typed := testing.AllocsPerRun(20, func() { require.NoError(t, k.Launch(cfg, args{m, 1, 1})) })
	untyped := testing.AllocsPerRun(20, func() { require.NoError(t, f.Launch(cfg, m, uint32(1), uint32(1))) })
	require.Less(t, typed, untyped)
	require.NoError(t, s.Synchronize())
}

// Memory that a kernel uses may be closed while the kernel is queued.
func TestKernelMemoryIsClosed(t *testing.T) {
	d := openDevice(t, 0)
	type args struct {
		P        cu.DevicePtr
		Value, N uint32
	}
	type owned struct {
		P        *cuda.Memory
		Value, N uint32
	}
	f := function(t, loadKernels(t, d), "fill")
	k, err := cuda.KernelOf[owned](f)
	require.NoError(t, err)
	m, err := d.AllocMemory(64)
	require.NoError(t, err)
	s := newStream(t, d)
	require.NoError(t, k.Launch(cuda.LaunchConfig{Stream: s}, owned{m, 1, 1}))
	require.NoError(t, m.Close())
	require.NoError(t, s.Synchronize())
	require.ErrorIs(t, k.Launch(cuda.LaunchConfig{Stream: s}, owned{m, 1, 1}), os.ErrClosed)
	_, err = cuda.KernelOf[args](f)
	require.NoError(t, err)
}
