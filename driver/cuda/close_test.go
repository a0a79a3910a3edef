package cuda_test

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// gate is a stream that executes no later work until it is opened.
type gate struct {
	*cuda.Stream
	t    *testing.T
	flag *cuda.Memory
	by   *cuda.Stream
}

func blocked(t *testing.T, d *cuda.Device) *gate {
	t.Helper()
	g := &gate{t: t, flag: alloc(t, d, 8), by: newStream(t, d), Stream: newStream(t, d)}
	g.close()
	t.Cleanup(g.open) // before the streams and memory are closed, if the test has failed
	return g
}

// close holds back work that is queued later.
func (g *gate) close() {
	g.t.Helper()
	require.NoError(g.t, g.by.Fill8(g.flag, 0, 8, 0))
	require.NoError(g.t, g.by.Synchronize())
	require.NoError(g.t, g.WaitValue64(g.flag, 0, 1))
}

func (g *gate) open() {
	_ = g.by.WriteValue64(g.flag, 0, 1)
	_ = g.by.Synchronize()
}

// closable is an object whose Close waits.
type closable interface {
	closer
	Closing() bool
}

// closeLater closes the object on another goroutine and returns when Close has begun.
func closeLater(t *testing.T, c closable) (done chan error) {
	t.Helper()
	done = make(chan error, 1)
	go func() { done <- c.Close() }()
	eventually(t, c.Closing)
	return done
}

func eventually(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		require.False(t, time.Now().After(deadline), "the state was not reached")
	}
}

// memoryKinds are constructors of each kind of memory that queued work can use. Each returns memory of 1000 bytes.
var memoryKinds = map[string]func(t *testing.T, d *cuda.Device) *cuda.Memory{
	"virtual": func(t *testing.T, d *cuda.Device) *cuda.Memory {
		m, err := d.AllocMemory(1000)
		require.NoError(t, err)
		return m
	},
	"legacy": func(t *testing.T, d *cuda.Device) *cuda.Memory {
		m, err := d.AllocLegacy(1000)
		require.NoError(t, err)
		return m
	},
	"exposed": func(t *testing.T, d *cuda.Device) *cuda.Memory {
		m, err := d.AllocLegacy(1000)
		require.NoError(t, err)
		require.NotZero(t, m.Pointer())
		return m
	},
	"imported": func(t *testing.T, d *cuda.Device) *cuda.Memory {
		h, err := alloc(t, d, 1000).Export()
		keep(t, h, err)
		m, err := d.Import(h, driver.ImportOptions{Writable: true})
		require.NoError(t, err)
		return m.(*cuda.Memory)
	},
	"legacy handle": func(t *testing.T, d *cuda.Device) *cuda.Memory {
		m, err := d.OpenIPC(startOwner(t).handle)
		require.NoError(t, err)
		return m
	},
	"pool": func(t *testing.T, d *cuda.Device) *cuda.Memory {
		pool, err := d.DefaultPool()
		keep(t, pool, err)
		s := newStream(t, d)
		m, err := s.Alloc(pool, 1000)
		require.NoError(t, err)
		require.NoError(t, s.Synchronize())
		return m
	},
}

// Memory that a stream of another device uses is kept until that work is done.
func TestCloseWaitsForStreamsOfOtherDevices(t *testing.T) {
	for name, makeMemory := range memoryKinds {
		t.Run(name, func(t *testing.T) {
			d, other := openDevice(t, 0), openDevice(t, 1)
			m, near, s := makeMemory(t, d), alloc(t, other, 1000), blocked(t, other)
			require.NoError(t, s.CopyOnDevice(near, 0, m, 0, 1000))
			done := closeLater(t, m)
			s.open()
			require.NoError(t, <-done)
			require.NoError(t, s.Synchronize(), "the copy ran before the memory was released")
		})
	}
	t.Run("host memory", func(t *testing.T) {
		d, other := openDevice(t, 0), openDevice(t, 1)
		m, s := alloc(t, other, 1000), blocked(t, other)
		for _, pin := range []func() (*cuda.HostMemory, error){
			func() (*cuda.HostMemory, error) { return d.AllocHost(1000) },
			func() (*cuda.HostMemory, error) { return d.RegisterHost(make([]byte, 8192)) },
		} {
			h, err := pin()
			require.NoError(t, err)
			require.NoError(t, s.CopyToHost(h, 0, m, 0, 1000))
			done := closeLater(t, h)
			s.open()
			require.NoError(t, <-done)
			require.NoError(t, s.Synchronize(), "the copy ran before the memory was released")
			s.close()
		}
	})
}

// An exposed address may be used by work in all streams of the device that no method has recorded.
func TestCloseWaitsForUnrecordedWork(t *testing.T) {
	d := openDevice(t, 0)
	m, s := memoryKinds["legacy"](t, d), blocked(t, d)
	ptr := m.Pointer()
	require.NoError(t, d.Do(func() error { return cu.MemsetD8Async(ptr, 1, 1000, s.Handle()).Err() }))
	done := closeLater(t, m)
	s.open()
	require.NoError(t, <-done)
	require.NoError(t, s.Synchronize())

	s.close()
	r, err := d.ReserveAddresses(granule, 0)
	keep(t, r, err)
	a, err := d.CreateAllocation(granule, 0)
	keep(t, a, err)
	require.NoError(t, r.Map(0, a, granule))
	require.NoError(t, r.SetAccess(d, 0, granule, cuda.ReadWrite))
	base := r.Base()
	require.NoError(t, d.Do(func() error { return cu.MemsetD8Async(base, 1, 1000, s.Handle()).Err() }))
	unmapped := make(chan error, 1)
	go func() { unmapped <- r.Unmap(0) }()
	s.open()
	require.NoError(t, <-unmapped)
	require.NoError(t, s.Synchronize())
}

// Closing an object ignores recorded work of other objects.
func TestCloseIgnoresUnrelatedStreams(t *testing.T) {
	d := openDevice(t, 0)
	m := memoryKinds["virtual"](t, d)
	blocked(t, d)
	require.NoError(t, m.Close())
}

// A free in stream order is executed after the work of other streams, and the pool is destroyed after it.
func TestFreeWaitsForOtherStreams(t *testing.T) {
	fake := startFake(t)
	d := openDevice(t, 0)
	pool, err := d.NewPool()
	require.NoError(t, err)
	s, user := newStream(t, d), blocked(t, d)
	m, err := s.Alloc(pool, 1000)
	require.NoError(t, err)
	require.NoError(t, s.Synchronize())
	require.NoError(t, user.Fill8(m, 0, 1000, 1))
	require.NoError(t, s.Free(m))
	require.True(t, m.Closing())
	done := closeLater(t, pool)
	require.EqualValues(t, 1, fake.Live()["pools"])
	user.open()
	require.NoError(t, <-done)
	require.NoError(t, errors.Join(user.Synchronize(), s.Synchronize()))
}

// An instantiated graph, its module and its memory are kept until a launch of the graph is done.
func TestCloseWaitsForGraphs(t *testing.T) {
	d := openDevice(t, 0)
	recorder, s := newStream(t, d), blocked(t, d)
	mod, err := d.LoadModule([]byte(kernelsPTX))
	require.NoError(t, err)
	fill, m := function(t, mod, "fill"), memoryKinds["legacy"](t, d)
	g, err := recorder.Capture(func() error {
		return fill.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 4}, Stream: recorder}, m, uint32(7), 4)
	})
	require.NoError(t, err)
	x, err := g.Instantiate()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, x.Launch(s.Stream))
	done := []chan error{closeLater(t, x), closeLater(t, m), closeLater(t, mod)}
	s.open()
	for _, c := range done {
		require.NoError(t, <-c)
	}
	require.NoError(t, s.Synchronize(), "the launch ran before its parts were released")
}

// Kernels in the default stream also keep their module and memory.
func TestCloseWaitsForTheDefaultStream(t *testing.T) {
	d := openDevice(t, 0)
	mod, err := d.LoadModule([]byte(kernelsPTX))
	require.NoError(t, err)
	m := memoryKinds["virtual"](t, d)
	fill := function(t, mod, "fill")
	require.NoError(t, fill.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 4}}, m, uint32(7), 4))
	require.NoError(t, mod.Close())
	require.NoError(t, m.Close())
	require.NoError(t, d.Synchronize())
}

// deferred closes objects that queued work of the stream uses while the stream captures.
func deferred(t *testing.T, s *gate, closing func() error, want int) {
	t.Helper()
	d := s.Device()
	m := alloc(t, d, 16)
	g, err := s.Capture(func() error {
		if err := closing(); err != nil {
			return err
		}
		if n := d.Stats().Deferred; n != want {
			t.Errorf("%d releases are deferred, want %d", n, want)
		}
		return s.Fill8(m, 0, 16, 1)
	})
	keep(t, g, err)
	n, err := g.Nodes()
	require.NoError(t, err)
	require.Equal(t, 1, n, "the capture is undisturbed")
	require.Equal(t, want, d.Stats().Deferred, "the work is not done")
	s.open()
	require.NoError(t, s.Synchronize(), "the work ran before its memory was released")
	eventually(t, func() bool { return d.Stats() == cuda.Stats{} })
}

// Close of an object that queued work uses succeeds and does not disturb the capture of its stream.
func TestCloseDuringCaptureIsDeferred(t *testing.T) {
	for name, makeMemory := range memoryKinds {
		t.Run(name, func(t *testing.T) {
			d := openDevice(t, 0)
			m, s := makeMemory(t, d), blocked(t, d)
			require.NoError(t, s.Fill8(m, 0, 1000, 1))
			deferred(t, s, func() error {
				defer func() { require.NoError(t, m.Close(), "a second Close") }()
				err := m.Close()
				require.GreaterOrEqual(t, d.Stats().DeferredBytes, m.Bytes())
				return err
			}, 1)
		})
	}
	t.Run("others", func(t *testing.T) {
		d := openDevice(t, 0)
		h, err := d.AllocHost(1000)
		require.NoError(t, err)
		m, recorder := alloc(t, d, 1000), newStream(t, d)
		s := blocked(t, d)
		require.NoError(t, s.CopyToHost(h, 0, m, 0, 1000))
		mod, err := d.LoadModule([]byte(kernelsPTX))
		require.NoError(t, err)
		require.NoError(t, function(t, mod, "empty").Launch(cuda.LaunchConfig{Stream: s.Stream}))
		pool, err := d.NewPool()
		require.NoError(t, err)
		pooled, err := s.Alloc(pool, 1000)
		require.NoError(t, err)
		g, err := recorder.Capture(func() error { return recorder.Fill8(m, 0, 10, 1) })
		require.NoError(t, err)
		x, err := g.Instantiate()
		require.NoError(t, errors.Join(err, g.Close(), x.Launch(s.Stream)))
		unused := memoryKinds["virtual"](t, d)
		deferred(t, s, func() error {
			return errors.Join(unused.Close(), h.Close(), mod.Close(), recorder.Free(pooled), pool.Close(), x.Close())
		}, 5)
	})
}

// Copies in both directions and Closes of both memories end, with or without the error of a closed object.
func TestCopiesAndClosersDoNotDeadlock(t *testing.T) {
	d := openDevice(t, 0)
	forth, back := newStream(t, d), newStream(t, d)
	for range 200 {
		a, b := memoryKinds["legacy"](t, d), memoryKinds["legacy"](t, d)
		results := make(chan error, 4)
		for _, f := range []func() error{
			func() error { return forth.CopyOnDevice(b, 0, a, 0, 1000) },
			func() error { return back.CopyOnDevice(a, 0, b, 0, 1000) },
			a.Close, b.Close,
		} {
			go func() { results <- f() }()
		}
		for range cap(results) {
			select {
			case err := <-results:
				require.True(t, err == nil || errors.Is(err, os.ErrClosed), err)
			case <-time.After(time.Minute):
				t.Fatal("calls and Closes deadlock")
			}
		}
	}
	require.NoError(t, errors.Join(forth.Synchronize(), back.Synchronize()))
}

// A Close that cannot be deferred fails, and succeeds after the capture.
func TestCaptureRefusesCloseOfItsStream(t *testing.T) {
	d := openDevice(t, 0)
	s, joined := newStream(t, d), newStream(t, d)
	fork, err := d.NewEvent(cuda.EventOptions{})
	keep(t, fork, err)
	join, err := d.NewEvent(cuda.EventOptions{})
	keep(t, join, err)
	r, err := d.ReserveAddresses(granule, 0)
	keep(t, r, err)
	a, err := d.CreateAllocation(granule, 0)
	keep(t, a, err)
	require.NoError(t, r.Map(0, a, granule))
	require.NotZero(t, r.Base())
	g, err := s.Capture(func() error {
		if err := errors.Join(fork.Record(s), joined.Wait(fork)); err != nil {
			return err
		}
		require.ErrorIs(t, s.Close(), cuda.ErrCapturing)
		require.ErrorIs(t, joined.Close(), cuda.ErrCapturing)
		require.ErrorIs(t, r.Unmap(0), cuda.ErrCapturing)
		return errors.Join(join.Record(joined), s.Wait(join))
	})
	keep(t, g, err)
	require.NoError(t, r.Unmap(0))
	require.NoError(t, errors.Join(s.Close(), joined.Close()))
	require.ErrorIs(t, s.Synchronize(), os.ErrClosed)
}

// The driver refuses to wait for a context while one of its streams captures, on any thread, and invalidates the
// capture.
func TestSynchronizeDuringCaptureFails(t *testing.T) {
	d := openDevice(t, 0)
	s, m := newStream(t, d), alloc(t, d, 16)
	result := make(chan error)
	_, err := s.Capture(func() error {
		go func() { result <- d.Synchronize() }()
		require.ErrorIs(t, <-result, cuda.ErrCapturing)
		return s.Fill8(m, 0, 16, 1)
	})
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, cu.ERROR_STREAM_CAPTURE_INVALIDATED, e.Code)
	require.NoError(t, d.Synchronize())
}

// The stand-in reports memory that is freed while queued work uses it, so tests detect a release without a wait.
func TestFreeUnderWorkIsAFault(t *testing.T) {
	if child(t, "freed") {
		return
	}
	d := openDevice(t, 0)
	s := blocked(t, d)
	require.NoError(t, d.Do(func() error {
		var p cu.DevicePtr
		return errors.Join(cu.MemAlloc(&p, 1000).Err(), cu.MemsetD8Async(p, 1, 1000, s.Handle()).Err(), cu.MemFree(p).Err())
	}))
	s.open()
	require.ErrorIs(t, s.Synchronize(), cuda.ErrFault)
}

// Memory that becomes unreachable while a stream that uses it captures is released after the capture.
func TestCleanupDuringCaptureIsDeferred(t *testing.T) {
	d := openDevice(t, 0)
	s := blocked(t, d)
	before := driver.Leaks()
	func() { require.NoError(t, s.Fill8(memoryKinds["legacy"](t, d), 0, 1000, 1)) }()
	deferred(t, s, func() error {
		collectInto(t, func() bool { return d.Stats().Deferred == 1 })
		return nil
	}, 1)
	eventually(t, func() bool { return driver.Leaks().Released == before.Released+1 })
}

// collectInto runs the garbage collector until done returns true.
func collectInto(t *testing.T, done func() bool) {
	t.Helper()
	eventually(t, func() bool { runtime.GC(); return done() })
}

// Methods that use memory of another device keep the context of Do current.
func TestDoRestoresTheContext(t *testing.T) {
	d, other := openDevice(t, 0), openDevice(t, 1)
	far := alloc(t, other, 100)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	current := func() (c cu.Context) {
		require.NoError(t, cu.CtxGetCurrent(&c).Err())
		return c
	}
	before := current()
	require.NoError(t, d.Do(func() error {
		_, err := far.WriteAt([]byte("x"), 0)
		require.NoError(t, err)
		require.NoError(t, other.Do(func() error { return nil }))
		require.Equal(t, d.Context(), current())
		return nil
	}))
	require.Equal(t, before, current())
	require.Panics(t, func() { _ = d.Do(func() error { panic("x") }) })
	require.Equal(t, before, current())
}

func TestDoReleasesAfterPanic(t *testing.T) {
	fake := startFake(t)
	d, err := cuda.Open(2)
	require.NoError(t, err)
	require.Panics(t, func() { _ = d.Do(func() error { panic("x") }) })
	require.NoError(t, d.Close())
	require.Zero(t, fake.Live()["contexts"])
}

func TestEnablePeerOfClosedDevice(t *testing.T) {
	d := openDevice(t, 0)
	other, err := cuda.Open(1)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.ErrorIs(t, d.EnablePeer(other), os.ErrClosed)
	require.ErrorIs(t, d.DisablePeer(other), os.ErrClosed)
}
