package cuda_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

var errUnsupported = errors.ErrUnsupported

func loadKernels(t testing.TB, d *cuda.Device) *cuda.Module {
	t.Helper()
	mod, err := d.LoadModule([]byte(kernelsPTX))
	return keep(t, mod, err)
}

func function(t testing.TB, mod *cuda.Module, name string) *cuda.Function {
	t.Helper()
	f, err := mod.Function(name)
	require.NoError(t, err)
	return f
}

func floats(n int, f func(i int) float32) []byte {
	var b []byte
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f(i)))
	}
	return b
}

func TestLaunch(t *testing.T) {
	d := openDevice(t, 0)
	mod := loadKernels(t, d)
	saxpy := function(t, mod, "saxpy")
	s := newStream(t, d)
	const n = 1000
	x, y := alloc(t, d, 4*n), alloc(t, d, 4*n)
	_, err := x.WriteAt(floats(n, func(i int) float32 { return float32(i) }), 0)
	require.NoError(t, err)
	_, err = y.WriteAt(floats(n, func(i int) float32 { return float32(-i) }), 0)
	require.NoError(t, err)
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: (n + 127) / 128}, Block: cuda.Dim3{X: 128}, Stream: s}
	require.NoError(t, saxpy.Launch(cfg, float32(2.5), x, cu.DevicePtr(y.DevicePointer()), n))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 4*n)
	_, err = y.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, floats(n, func(i int) float32 { return 2.5*float32(i) - float32(i) }), got)

	for name, args := range map[string][]any{
		"too few":               {float32(1), x, y},
		"too many":              {float32(1), x, y, uint32(1), 1},
		"float64 for float32":   {1.0, x, y, uint32(1)},
		"32 bits of a pointer":  {float32(1), uint32(1), y, uint32(1)},
		"64 bits for 32":        {float32(1), x, y, uint64(1)},
		"int that does not fit": {float32(1), x, y, 1 << 40},
		"nil":                   {float32(1), nil, y, uint32(1)},
		"nil memory":            {float32(1), (*cuda.Memory)(nil), y, uint32(1)},
		"nil buffer":            {float32(1), (*cuda.Buffer[float32])(nil), y, uint32(1)},
		"a Go pointer":          {float32(1), &got, y, uint32(1)},
		"a slice":               {float32(1), got, y, uint32(1)},
		"a string":              {float32(1), "x", y, uint32(1)},
	} {
		require.ErrorIs(t, saxpy.Launch(cfg, args...), driver.ErrInvalid, name)
	}
	cfg.Block.X = 2000
	require.ErrorIs(t, saxpy.Launch(cfg, float32(1), x, y, 1), driver.ErrInvalid, "a block that is too large")
	require.NoError(t, function(t, mod, "empty").Launch(cuda.LaunchConfig{}))
	require.NoError(t, d.Synchronize())
}

func TestArgumentsOfAllTypes(t *testing.T) {
	d := openDevice(t, 0)
	shapes := function(t, loadKernels(t, d), "shapes")
	type pair struct {
		A int8
		B float64
		C [2]uint32
	}
	// The stand-in cannot run the kernel. It reports that after it has read the arguments.
	var e *cuda.Error
	err := shapes.Launch(cuda.LaunchConfig{}, pair{1, 2, [2]uint32{3, 4}}, true, int16(5), -6, 7.0)
	require.ErrorAs(t, err, &e)
	require.Equal(t, cu.ERROR_NOT_SUPPORTED, e.Code)
	require.ErrorIs(t, err, errUnsupported)
	require.ErrorIs(t, shapes.Launch(cuda.LaunchConfig{}, struct{ P *int }{}, true, int16(5), 6, 7.0), driver.ErrInvalid)
	require.ErrorIs(t, shapes.Launch(cuda.LaunchConfig{}, pair{}, true, int32(5), 6, 7.0), driver.ErrInvalid)
}

func TestFaultInvalidatesContext(t *testing.T) {
	if child(t, "fault") {
		return
	}
	startFake(t)
	d, err := cuda.Open(2)
	require.NoError(t, err)
	mod := loadKernels(t, d)
	s := newStream(t, d)
	m := alloc(t, d, 4096)
	h, err := m.Export()
	require.NoError(t, err)
	ro, err := d.Import(h, driver.ImportOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())
	fill := function(t, mod, "fill")
	require.NoError(t, fill.Launch(cuda.LaunchConfig{Grid: cuda.Dim3{X: 1}, Block: cuda.Dim3{X: 32}, Stream: s}, ro, uint32(1), uint32(32)))
	require.ErrorIs(t, s.Synchronize(), cuda.ErrFault)
	_, err = m.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, cuda.ErrFault)
	require.NoError(t, ro.Close(), "what there is can still be given back")
	require.NoError(t, d.Close())
}

func TestModules(t *testing.T) {
	d := openDevice(t, 0)
	mod := loadKernels(t, d)
	_, err := mod.Function("nothing")
	require.ErrorIs(t, err, cuda.ErrNoSymbol)
	_, err = mod.Function("a\x00b")
	require.ErrorIs(t, err, driver.ErrInvalid)
	p, size, err := mod.Global("table")
	require.NoError(t, err)
	require.NotZero(t, p)
	require.EqualValues(t, 16, size)
	_, _, err = mod.Global("chair")
	require.ErrorIs(t, err, cuda.ErrNoSymbol)

	fatbin := binary.LittleEndian.AppendUint32(nil, 0xba55ed50)
	fatbin = binary.LittleEndian.AppendUint16(fatbin, 1)
	fatbin = binary.LittleEndian.AppendUint16(fatbin, 16)
	fatbin = binary.LittleEndian.AppendUint64(fatbin, uint64(len(kernelsPTX)))
	whole := append(append([]byte{}, fatbin...), kernelsPTX...)
	fat, err := d.LoadModule(whole)
	keep(t, fat, err)
	require.Equal(t, "saxpy", function(t, fat, "saxpy").Name())

	for name, image := range map[string][]byte{
		"nothing":          nil,
		"text":             []byte("hello"),
		"zero inside PTX":  []byte(".version 7.0\x00.target sm_50"),
		"fatbin, header":   fatbin[:12],
		"fatbin, cut off":  whole[:len(whole)-1],
		"fatbin, overflow": binary.LittleEndian.AppendUint64(append([]byte{}, fatbin[:8]...), math.MaxUint64),
		"ELF, header":      []byte("\x7fELF\x02\x01\x01"),
	} {
		_, err := d.LoadModule(image)
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	_, err = d.LoadModule([]byte(".version 7.0\n.target sm_50\n.entry broken("))
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, cu.ERROR_INVALID_PTX, e.Code)
	require.ErrorContains(t, err, "syntax error", "what the compiler said")
}

func TestOccupancy(t *testing.T) {
	d := openDevice(t, 0)
	f := function(t, loadKernels(t, d), "saxpy")
	n, err := f.MaxActiveBlocks(256, 0)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	threads, blocks, err := f.SuggestBlock(0, 512)
	require.NoError(t, err)
	require.Equal(t, 512, threads)
	require.Positive(t, blocks)
	regs, err := f.Attribute(cu.FUNC_ATTRIBUTE_NUM_REGS)
	require.NoError(t, err)
	require.Positive(t, regs)
	require.NoError(t, f.SetSharedBytes(100<<10))
	require.ErrorIs(t, f.SetSharedBytes(1<<30), driver.ErrInvalid)
}

func TestGraph(t *testing.T) {
	d := openDevice(t, 0)
	s, other := newStream(t, d), newStream(t, d)
	m := alloc(t, d, 16)
	event, err := d.NewEvent(cuda.EventOptions{})
	keep(t, event, err)
	back, err := d.NewEvent(cuda.EventOptions{})
	keep(t, back, err)
	g, err := s.Capture(func() error {
		return errors.Join(s.Fill8(m, 0, 8, 1), event.Record(s), other.Wait(event), other.Fill8(m, 8, 8, 2), back.Record(other), s.Wait(back))
	})
	keep(t, g, err)
	n, err := g.Nodes()
	require.NoError(t, err)
	require.Equal(t, 2, n)
	x, err := g.Instantiate()
	keep(t, x, err)
	want := []byte{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2}
	got := make([]byte, 16)
	for range 2 {
		require.NoError(t, m.Fill(0, 16, 0))
		_, err = m.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, make([]byte, 16), got, "recorded is not done")
		require.NoError(t, x.Launch(s))
		require.NoError(t, s.Synchronize())
		_, err = m.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	broken := errors.New("broken")
	_, err = s.Capture(func() error { return broken })
	require.ErrorIs(t, err, broken)
	_, err = s.Capture(func() error { return errors.Join(s.Fill8(m, 0, 1, 1), s.Synchronize()) })
	require.Error(t, err, "waiting spoils a capture")
	require.NoError(t, s.Synchronize(), "the stream goes on")
	require.Panics(t, func() { s.Capture(func() error { panic("x") }) })
	require.NoError(t, s.Synchronize(), "the stream goes on")
}
