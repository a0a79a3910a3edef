package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// closer is an object that an operation made. It is nil if the operation does not make one.
type closer interface{ Close() error }

// closeAll closes the object that an operation made. If the first Close fails before it releases anything, closeAll
// retries.
func closeAll(c closer) {
	if c != nil && c.Close() != nil {
		c.Close()
	}
}

// operations are all operations that call the driver more than once. Each returns the object it made, and its error.
var operations = map[string]func(d *cuda.Device, x *fixture) (closer, error){
	"open":          func(*cuda.Device, *fixture) (closer, error) { return made(cuda.Open(1)) },
	"open by UUID":  func(d *cuda.Device, _ *fixture) (closer, error) { return made(cuda.OpenUUID(d.Info().UUID)) },
	"alloc":         func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.AllocMemory(5 << 20)) },
	"alloc legacy":  func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.AllocLegacy(100)) },
	"import":        func(d *cuda.Device, x *fixture) (closer, error) { return importing(d, x.handle) },
	"import fabric": func(d *cuda.Device, x *fixture) (closer, error) { return importing(d, x.fabric) },
	"export": func(_ *cuda.Device, x *fixture) (closer, error) {
		h, err := x.m.Export()
		return made(&closeOnce{c: h}, err)
	},
	"reserve and map": func(d *cuda.Device, x *fixture) (closer, error) {
		r, err := d.ReserveAddresses(4<<20, 0)
		if err != nil {
			return nil, err
		}
		a, err := d.CreateAllocation(2<<20, cuda.FileHandle)
		if err != nil {
			return r, err
		}
		defer closeAll(a)
		if err := r.Map(2<<20, a, 2<<20); err != nil {
			return r, err
		}
		return r, r.SetAccess(d, 2<<20, 2<<20, cuda.ReadWrite)
	},
	"stream": func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.NewStream(cuda.StreamOptions{})) },
	"event": func(d *cuda.Device, _ *fixture) (closer, error) {
		return made(d.NewEvent(cuda.EventOptions{Interprocess: true}))
	},
	"host memory": func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.AllocHost(1 << 20)) },
	"register":    func(d *cuda.Device, x *fixture) (closer, error) { return made(d.RegisterHost(x.page)) },
	"pool":        func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.NewPool()) },
	"pool memory": func(_ *cuda.Device, x *fixture) (closer, error) { return made(x.s.Alloc(x.pool, 1000)) },
	"pool memory freed in order": func(_ *cuda.Device, x *fixture) (closer, error) {
		m, err := x.s.Alloc(x.pool, 1000)
		if err != nil {
			return nil, err
		}
		if err := x.s.Free(m); err != nil {
			return m, err
		}
		return m, x.s.Synchronize()
	},
	"module":   func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.LoadModule([]byte(kernelsPTX))) },
	"function": func(_ *cuda.Device, x *fixture) (closer, error) { _, err := x.mod.Function("saxpy"); return nil, err },
	"graph": func(_ *cuda.Device, x *fixture) (closer, error) {
		return made(x.s.Capture(func() error { return x.s.Fill8(x.m, 0, 100, 1) }))
	},
	"instantiate": func(_ *cuda.Device, x *fixture) (closer, error) { return made(x.graph.Instantiate()) },
	"load": func(d *cuda.Device, x *fixture) (closer, error) {
		d2, err := cuda.Open(0, cuda.WithStaging(2, 4096)) // the buffers belong to the device
		if err != nil {
			return nil, err
		}
		defer closeAll(d2)
		m, err := d2.AllocMemory(20000)
		if err != nil {
			return nil, err
		}
		return m, m.LoadAt(bytes.NewReader(make([]byte, 20000)), 0, 0, 20000, nil)
	},
	"write and read": func(_ *cuda.Device, x *fixture) (closer, error) {
		if _, err := x.m.WriteAt(make([]byte, 100), 3); err != nil {
			return nil, err
		}
		_, err := x.m.ReadAt(make([]byte, 100), 3)
		return nil, err
	},
	"probe": func(d *cuda.Device, _ *fixture) (closer, error) {
		var errs []error
		for _, s := range d.Probe() {
			errs = append(errs, s.Err)
		}
		return nil, firstOf(errs)
	},
	"managed memory": func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.AllocManaged(100)) },
	"buffer":         func(d *cuda.Device, _ *fixture) (closer, error) { return made(cuda.NewBuffer[int32](d, 10)) },
	"host buffer":    func(d *cuda.Device, _ *fixture) (closer, error) { return made(cuda.NewHostBuffer[int32](d, 10)) },
	"pitched": func(d *cuda.Device, _ *fixture) (closer, error) {
		m, _, err := d.AllocPitched(100, 10, 4)
		return made(m, err)
	},
	"allocation": func(d *cuda.Device, _ *fixture) (closer, error) {
		return made(d.CreateAllocation(2<<20, cuda.FileHandle))
	},
	"import descriptor": func(d *cuda.Device, x *fixture) (closer, error) {
		return made(d.ImportFile(x.handle.File))
	},
	"shared pool": func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.NewSharedPool(cuda.FileHandle)) },
	"library": func(d *cuda.Device, _ *fixture) (closer, error) {
		return made(d.LoadLibrary([]byte(kernelsPTX), cuda.JITOptions{}))
	},
	"multicast": func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.NewMulticast(1, 2<<20, 0)) },
	"new graph": func(d *cuda.Device, _ *fixture) (closer, error) { return made(d.NewGraph()) },
	"node with attributes": func(d *cuda.Device, x *fixture) (closer, error) {
		g, err := d.NewGraph()
		if err != nil {
			return nil, err
		}
		_, err = g.AddKernel(x.fill, cuda.LaunchConfig{Attributes: []cuda.LaunchAttribute{cuda.Cooperative()}}, nil, x.m, uint32(1), uint32(1))
		return g, err
	},
	"host node": func(d *cuda.Device, _ *fixture) (closer, error) {
		g, err := d.NewGraph()
		if err != nil {
			return nil, err
		}
		_, err = g.AddHost(func() {})
		return g, err
	},
	"green context": func(d *cuda.Device, _ *fixture) (closer, error) {
		all, err := d.Multiprocessors()
		if err != nil {
			return nil, err
		}
		return made(all.NewContext())
	},
	"properties": func(d *cuda.Device, _ *fixture) (closer, error) { _, err := d.Properties(); return nil, err },
}

// closeOnce wraps an object that cannot be closed twice.
type closeOnce struct {
	c      closer
	closed bool
}

func (o *closeOnce) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	return o.c.Close()
}

func made[T closer](c T, err error) (closer, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

func importing(d *cuda.Device, h driver.Handle) (closer, error) {
	return made(d.Import(h, driver.ImportOptions{}))
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// fixture holds the objects that operations use.
type fixture struct {
	m              *cuda.Memory
	handle, fabric driver.Handle
	s              *cuda.Stream
	pool           *cuda.Pool
	mod            *cuda.Module
	fill           *cuda.Function
	graph          *cuda.Graph
	page           []byte
}

func newFixture(t *testing.T, d *cuda.Device) *fixture {
	t.Helper()
	x := &fixture{page: make([]byte, 4096)}
	var err error
	keep := func(c closer, err error) {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
	}
	x.m, err = d.AllocMemory(3 << 20)
	keep(x.m, err)
	x.handle, err = x.m.Export()
	keep(x.handle, err)
	other, err := cuda.Open(0, cuda.WithHandleKind(driver.CUDAFabric))
	keep(other, err)
	fabric, err := other.AllocMemory(100)
	keep(fabric, err)
	x.fabric, err = fabric.Export()
	keep(x.fabric, err)
	x.s, err = d.NewStream(cuda.StreamOptions{})
	keep(x.s, err)
	x.pool, err = d.NewPool()
	keep(x.pool, err)
	x.mod, err = d.LoadModule([]byte(kernelsPTX))
	keep(x.mod, err)
	x.fill, err = x.mod.Function("fill")
	require.NoError(t, err)
	x.graph, err = x.s.Capture(func() error { return x.s.Fill8(x.m, 0, 10, 1) })
	keep(x.graph, err)
	return x
}

// If any one call of an operation fails, the operation returns the driver's error and releases all it has made: objects
// of the driver, descriptors and mappings.
func TestEveryCallFails(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	x := newFixture(t, d)
	for name, run := range operations {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			before := fake.Live()
			start := fake.Calls()
			c, err := run(d, x)
			require.NoError(t, err)
			calls := fake.Calls() - start
			closeAll(c)
			require.Equal(t, before, fake.Live(), "without a failure")
			for k := int64(1); k <= calls; k++ {
				fake.FailCall(k, cu.ERROR_OUT_OF_MEMORY)
				c, err := run(d, x)
				failed := fake.Failed()
				fake.FailNone()
				what := fmt.Sprintf("call %d of %d, %s", k, calls, failed)
				if err == nil {
					require.Contains(t, ignored, failed, what)
				} else {
					require.ErrorIs(t, err, driver.ErrOutOfMemory, what)
				}
				closeAll(c)
				require.NoError(t, x.s.Synchronize())
				require.Equal(t, before, fake.Live(), what)
			}
		})
	}
}

// ignored are calls whose result does not affect the operation: clean-up after a wait or a failure, queries of features
// that older drivers lack, the query whether a stream captures, and all calls that close the objects of a load.
var ignored = append([]string{"cuStreamSynchronize", "cuStreamDestroy_v2", "cuMemFreeHost", "cuDevicePrimaryCtxRelease_v2",
	"cuCtxPushCurrent_v2", "cuMemRelease", "cuStreamIsCapturing"}, afterWaits...)

// afterWaits are the calls that follow a wait. Close ignores their results because the wait has succeeded.
var afterWaits = []string{"cuEventDestroy_v2", "cuThreadExchangeStreamCaptureMode", "cuCtxPopCurrent_v2"}

// closers are operations that make an object from objects of the fixture or of another process.
func closers(t *testing.T, d *cuda.Device, x *fixture) map[string]func() (closer, error) {
	all := map[string]func() (closer, error){}
	for name, run := range operations {
		all[name] = func() (closer, error) { return run(d, x) }
	}
	for name, w := range wrappings {
		all["wrapped "+name] = func() (closer, error) { return w.wrap(d, w.make(t, d), cuda.Owned) }
	}
	o := startOwner(t)
	all["legacy handle"] = func() (closer, error) { return made(d.OpenIPC(o.handle)) }
	all["event of another process"] = func() (closer, error) { return made(d.OpenEvent(o.event)) }
	all["object of a closed device"] = func() (closer, error) { // the object has the last reference to the context
		other, err := cuda.Open(1)
		if err != nil {
			return nil, err
		}
		e, err := other.NewEvent(cuda.EventOptions{})
		return made(e, errors.Join(err, other.Close()))
	}
	all["object of a closed green context"] = func() (closer, error) {
		all, err := d.Multiprocessors()
		if err != nil {
			return nil, err
		}
		green, err := all.NewContext()
		if err != nil {
			return nil, err
		}
		e, err := green.NewEvent(cuda.EventOptions{})
		return made(e, errors.Join(err, green.Close()))
	}
	return all
}

// If a call of Close fails, once or twice, Close can be repeated. Each resource is released exactly once.
func TestCloseFails(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	x := newFixture(t, d)
	for name, run := range closers(t, d, x) {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			before := fake.Live()
			for k := int64(1); ; k++ {
				c, err := run()
				require.NoError(t, err)
				if c == nil {
					return
				}
				fake.FailCall(k, cu.ERROR_UNKNOWN)
				err = c.Close()
				failed := fake.Failed()
				fake.FailNone()
				if err != nil && failed != "cuDevicePrimaryCtxRelease_v2" { // the driver counts, so that call is not repeated
					fake.FailFunction(failed, 1, cu.ERROR_UNKNOWN)
					require.Error(t, c.Close(), "the second Close: %s fails again", failed)
					fake.FailNone()
				}
				start := fake.Calls()
				require.NoError(t, c.Close(), "the last Close, after %s failed with %v", failed, err)
				if err == nil {
					require.Equal(t, start, fake.Calls(), "nothing was left to release")
				}
				require.Equal(t, before, fake.Live(), failed)
				if failed == "" {
					require.NoError(t, err)
					return
				}
				if err == nil {
					require.Contains(t, afterWaits, failed)
				}
			}
		})
	}
}

// An object whose release has begun cannot be used: a part of it may be gone.
func TestObjectIsUnusableAfterAFailedRelease(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	for _, function := range []string{"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"} {
		m, err := d.AllocMemory(100)
		require.NoError(t, err)
		fake.FailFunction(function, 1, cu.ERROR_UNKNOWN)
		require.Error(t, m.Close())
		_, err = m.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, os.ErrClosed, function)
		require.Zero(t, m.Pointer())
		require.NoError(t, m.Close())
	}
}

// A mapping that the driver did not remove remains, and can be removed later.
func TestUnmapCanBeRepeated(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	r, err := d.ReserveAddresses(4<<20, 0)
	keep(t, r, err)
	a, err := d.CreateAllocation(2<<20, 0)
	keep(t, a, err)
	require.NoError(t, r.Map(2<<20, a, 2<<20))
	fake.FailFunction("cuMemUnmap", 1, cu.ERROR_UNKNOWN)
	require.Error(t, r.Unmap(2<<20))
	require.NoError(t, r.SetAccess(d, 2<<20, 2<<20, cuda.ReadWrite), "it is still mapped")
	require.NoError(t, r.Unmap(2<<20))
	require.ErrorIs(t, r.Unmap(2<<20), driver.ErrInvalid)
	require.NoError(t, r.Map(2<<20, a, 2<<20))
}

// After a fault the context is lost with all of its resources. Close reports the error once and has nothing to repeat.
func TestCloseAfterAFault(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	before := fake.Live()
	m, err := d.AllocLegacy(100)
	require.NoError(t, err)
	fake.FailFunction("cuMemFree", 1, cu.ERROR_ILLEGAL_ADDRESS)
	require.ErrorIs(t, m.Close(), cuda.ErrFault)
	require.NoError(t, m.Close())
	require.Equal(t, before, fake.Live())
}
