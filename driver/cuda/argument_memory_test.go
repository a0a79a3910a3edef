package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// named is memory of another package with a name.
type named struct {
	*cuda.Memory
	name string
}

// unified is managed memory of another package.
type unified struct{ *cuda.Managed }

// view is a part of memory that has its own address.
type view struct {
	*cuda.Memory
	offset, bytes int64
}

func (v *view) Bytes() int64          { return v.bytes }
func (v *view) DevicePointer() uint64 { return v.Memory.DevicePointer() + uint64(v.offset) }

// foreignMemory is memory of another package that hides whose it is.
type foreignMemory struct{ driver.Addressable }

// knownMemory is memory of another package that states whose it is.
type knownMemory struct{ foreignMemory }

func (m knownMemory) Region() (driver.Memory, int64, error) { return m.Addressable, 0, nil }

// ways launch a kernel that fills the first word of an argument with value.
var ways = map[string]func(t *testing.T, f *cuda.Function, s *cuda.Stream, arg any, value uint32){
	"launch": func(t *testing.T, f *cuda.Function, s *cuda.Stream, arg any, value uint32) {
		require.NoError(t, f.Launch(cuda.LaunchConfig{Stream: s}, arg, value, uint32(1)))
	},
	"typed kernel": func(t *testing.T, f *cuda.Function, s *cuda.Stream, arg any, value uint32) {
		if region, ok := arg.(cuda.Region); ok {
			launchTyped(t, f, s, region, value)
		} else {
			launchTyped(t, f, s, arg.(driver.Addressable), value)
		}
	},
	"graph": func(t *testing.T, f *cuda.Function, s *cuda.Stream, arg any, value uint32) {
		g, err := s.Device().NewGraph()
		keep(t, g, err)
		_, err = g.AddKernel(f, cuda.LaunchConfig{}, nil, arg, value, uint32(1))
		require.NoError(t, err)
		x, err := g.Instantiate()
		keep(t, x, err)
		require.NoError(t, x.Launch(s))
	},
	"replaced in a graph": func(t *testing.T, f *cuda.Function, s *cuda.Stream, arg any, value uint32) {
		g, err := s.Device().NewGraph()
		keep(t, g, err)
		n, err := g.AddKernel(f, cuda.LaunchConfig{}, nil, alloc(t, s.Device(), 4), value, uint32(1))
		require.NoError(t, err)
		x, err := g.Instantiate()
		keep(t, x, err)
		require.NoError(t, x.SetKernel(n, f, cuda.LaunchConfig{}, arg, value, uint32(1)))
		require.NoError(t, x.Launch(s))
	},
}

func launchTyped[P any](t *testing.T, f *cuda.Function, s *cuda.Stream, p P, value uint32) {
	type args struct {
		P        P
		Value, N uint32
	}
	k, err := cuda.KernelOf[args](f)
	require.NoError(t, err)
	require.NoError(t, k.Launch(cuda.LaunchConfig{Stream: s}, args{p, value, 1}))
}

// Memory among the arguments of a kernel of each type is not exposed by the launch, and Close waits for the
// kernel. Only memory whose type hides that it is of this package is exposed.
func TestMemoryOfAnyTypeIsTracked(t *testing.T) {
	d := openDevice(t, 0)
	f := function(t, loadKernels(t, d), "fill")
	plain := func(t *testing.T) *cuda.Memory {
		m, err := d.AllocMemory(64)
		require.NoError(t, err)
		return m
	}
	managed := func(t *testing.T) *cuda.Managed {
		m, err := d.AllocManaged(64)
		require.NoError(t, err)
		return m
	}
	for name, test := range map[string]struct {
		make    func(t *testing.T) (arg any, in *cuda.Memory)
		exposed bool
		at      int64
	}{
		"memory":           {make: func(t *testing.T) (any, *cuda.Memory) { m := plain(t); return m, m }},
		"embedded":         {make: func(t *testing.T) (any, *cuda.Memory) { m := plain(t); return named{m, "x"}, m }},
		"embedded pointer": {make: func(t *testing.T) (any, *cuda.Memory) { m := plain(t); return &named{m, "x"}, m }},
		"managed":          {make: func(t *testing.T) (any, *cuda.Memory) { m := managed(t); return m, m.Memory }},
		"embedded managed": {make: func(t *testing.T) (any, *cuda.Memory) { m := managed(t); return unified{m}, m.Memory }},
		"region":           {make: func(t *testing.T) (any, *cuda.Memory) { m := plain(t); return &part{mem: m, offset: 8}, m }, at: 8},
		"region of embedded": {make: func(t *testing.T) (any, *cuda.Memory) {
			m := plain(t)
			return &part{mem: named{m, "x"}, offset: 8}, m
		}, at: 8},
		"region of managed": {make: func(t *testing.T) (any, *cuda.Memory) { m := managed(t); return &part{mem: m}, m.Memory }},
		"known":             {make: func(t *testing.T) (any, *cuda.Memory) { m := plain(t); return knownMemory{foreignMemory{m}}, m }},
		"view": {make: func(t *testing.T) (any, *cuda.Memory) {
			m := plain(t)
			return &view{m, 16, 48}, m
		}, exposed: true, at: 16},
		"hidden": {make: func(t *testing.T) (any, *cuda.Memory) { m := plain(t); return foreignMemory{m}, m }, exposed: true},
	} {
		for way, launch := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				arg, m := test.make(t)
				s := blocked(t, d)
				launch(t, f, s.Stream, arg, 7)
				require.Equal(t, test.exposed, m.Exposed().Load())
				done := closeLater(t, m)
				s.open()
				require.NoError(t, <-done)
				require.NoError(t, s.Synchronize(), "the kernel ran before the memory was released")
				arg, m = test.make(t)
				launch(t, f, s.Stream, arg, 7)
				require.NoError(t, s.Synchronize())
				got := make([]byte, 4)
				_, err := m.ReadAt(got, test.at)
				require.NoError(t, err)
				require.Equal(t, []byte{7, 0, 0, 0}, got)
				require.NoError(t, m.Close())
			})
		}
	}
}
