package cuda_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

func TestLibrary(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	l, err := d.LoadLibrary([]byte(kernelsPTX), cuda.JITOptions{Verbose: true})
	keep(t, l, err)
	require.Contains(t, l.Log(), "ptxas info")
	names, err := l.Functions()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"saxpy", "fill", "empty", "shapes"}, names)
	for _, dev := range []*cuda.Device{d, other} {
		m := alloc(t, dev, 64)
		fill, err := l.FunctionOn(dev, "fill")
		require.NoError(t, err)
		cfg := cuda.LaunchConfig{Block: cuda.Dim3{X: 16}, Stream: newStream(t, dev)}
		require.NoError(t, fill.Launch(cfg, m, uint32(3), uint32(16)))
		require.NoError(t, cfg.Stream.Synchronize())
		require.EqualValues(t, 3, words(t, m, 16)[15])
		n, err := fill.MaxActiveBlocks(256, 0)
		require.NoError(t, err)
		require.Positive(t, n)
	}
	saxpy, err := l.Function("saxpy")
	require.NoError(t, err)
	_, err = cuda.KernelOf[struct{ A float32 }](saxpy)
	require.ErrorIs(t, err, driver.ErrInvalid, "the parameters are known")
	_, err = l.Function("nothing")
	require.ErrorIs(t, err, cuda.ErrNoSymbol)
	_, err = l.Function("a\x00b")
	require.ErrorIs(t, err, driver.ErrInvalid)
	p, size, err := l.Global("table")
	require.NoError(t, err)
	require.NotZero(t, p)
	require.EqualValues(t, 16, size)
	_, _, err = l.Global("chair")
	require.ErrorIs(t, err, cuda.ErrNoSymbol)
	require.NoError(t, l.Close())
	require.ErrorIs(t, saxpy.Launch(cuda.LaunchConfig{}, float32(1), cu.DevicePtr(0), cu.DevicePtr(0), 1), os.ErrClosed)
	_, err = l.Function("saxpy")
	require.ErrorIs(t, err, os.ErrClosed)
}

// A kernel of a library keeps working on another device after that which loaded it is closed, and fails when its own
// device is closed.
func TestLibraryOutlivesDevice(t *testing.T) {
	first, err := func() (*cuda.Device, error) { startFake(t); return cuda.Open(0) }()
	require.NoError(t, err)
	second, err := cuda.Open(1)
	require.NoError(t, err)
	l, err := first.LoadLibrary([]byte(kernelsPTX), cuda.JITOptions{})
	keep(t, l, err)
	empty, err := l.FunctionOn(second, "empty")
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.NoError(t, empty.Launch(cuda.LaunchConfig{}))
	require.NoError(t, second.Synchronize())
	require.NoError(t, second.Close())
	require.ErrorIs(t, empty.Launch(cuda.LaunchConfig{}), os.ErrClosed)
}

func TestJITOptions(t *testing.T) {
	d := openDevice(t, 0)
	all := cuda.JITOptions{MaxRegisters: 64, ThreadsPerBlock: 128, Optimization: cuda.OptimizeO3, Cache: cuda.CacheAll, LineInfo: true, DebugInfo: true,
		Verbose: true, LogBytes: 1024}
	mod, err := d.LoadModuleWith([]byte(kernelsPTX), all)
	keep(t, mod, err)
	require.Contains(t, mod.Log(), "ptxas info")
	require.Empty(t, loadKernels(t, d).Log(), "messages only if they are requested")
	for name, load := range map[string]func(image string, o cuda.JITOptions) error{
		"module":  func(image string, o cuda.JITOptions) error { return second(d.LoadModuleWith([]byte(image), o)) },
		"library": func(image string, o cuda.JITOptions) error { return second(d.LoadLibrary([]byte(image), o)) },
	} {
		err := load(".version 7.0\n.target sm_50\n.entry broken(", cuda.JITOptions{})
		var c *cuda.CompileError
		require.ErrorAs(t, err, &c, name)
		require.Contains(t, c.Log, "syntax error")
		var e *cuda.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, cu.ERROR_INVALID_PTX, e.Code)
		require.ErrorIs(t, load("hello", cuda.JITOptions{}), driver.ErrInvalid)
		for _, o := range []cuda.JITOptions{{LogBytes: -1}, {LogBytes: 1 << 30}, {Optimization: 9}, {Cache: 9}} {
			require.ErrorIs(t, load(kernelsPTX, o), driver.ErrInvalid)
		}
	}
}
