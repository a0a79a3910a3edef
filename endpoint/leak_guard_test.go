package endpoint_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// warnings is a log handler that records messages.
type warnings struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func (w *warnings) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// collect runs the garbage collector until ok returns true.
func collect(t *testing.T, what string, ok func() bool) {
	t.Helper()
	proctest.Eventually(t, fixture.WaitLimit, what, func() bool {
		runtime.GC()
		return ok()
	})
}

// forgetRef creates a reference and drops it. It returns the value and the object.
//
//go:noinline
func forgetRef[T any](t *testing.T, c endpoint.Caller, name string, size int) (value T, id string) {
	ref, err := endpoint.CallManaged[T](context.Background(), c, name, fixture.ModelIn{Size: size})
	require.NoError(t, err)
	return ref.Value(), ref.ID()
}

func TestLeakGuardRef(t *testing.T) {
	_, socket := fixture.Owner(t)
	dev := fixture.Device(t)
	log := new(warnings)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Logger: log.logger()})
	require.NoError(t, err)
	defer c.Close()
	kept, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 9})
	require.NoError(t, err)
	_, id := forgetRef[int](t, c, "number", 7)
	collect(t, "the object is gone", func() bool {
		_, err := c.ObjectInfo(ctx, id)
		return err != nil && strings.Contains(log.String(), "not closed")
	})
	require.Contains(t, log.String(), "object="+id+" endpoint=number")

	// Memory exposed by its value keeps a reference, because it may be in use.
	x, id := forgetRef[*tensor.Tensor](t, c, "model", 4)
	for range 5 {
		runtime.GC()
	}
	info, err := c.ObjectInfo(ctx, id)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Refs)
	require.Equal(t, []float32{4, 4, 4, 4}, fixture.Values(t, x))
	runtime.KeepAlive(x)
	x = nil
	collect(t, "the tensor was forgotten too", func() bool {
		_, err := c.ObjectInfo(ctx, id)
		return err != nil
	})
	_ = x

	// A closed reference causes no warning.
	require.NoError(t, kept.Err())
	require.NoError(t, kept.Close())
	proctest.Eventually(t, fixture.WaitLimit, "both warnings", func() bool { return strings.Count(log.String(), "not closed") == 2 })
	require.NotContains(t, log.String(), kept.ID())
}

func TestLeakGuardRefInProcess(t *testing.T) {
	log := new(warnings)
	dev := fixture.Device(t)
	r := fixture.Numbers(t)
	require.NoError(t, endpoint.Register(r, "model", func(_ context.Context, in fixture.ModelIn) (*tensor.Tensor, error) {
		return fixture.Filled(dev, in.Size, 1)
	}, endpoint.Managed()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: log.logger()})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: []driver.Device{dev}, Logger: log.logger()})
	require.NoError(t, err)
	defer c.Close()
	for n, through := range []endpoint.Caller{s, c} {
		_, number := forgetRef[int](t, through, "number", 7)
		x, model := forgetRef[*tensor.Tensor](t, through, "model", 3)
		collect(t, "the number is gone", func() bool {
			list, err := s.Objects(ctx)
			return err == nil && len(list) == 1 && list[0].ID == model
		})
		require.Len(t, fixture.Values(t, x), 3)
		runtime.KeepAlive(x)
		x = nil
		collect(t, "the objects are gone", func() bool {
			list, err := s.Objects(ctx)
			return err == nil && len(list) == 0 && strings.Count(log.String(), "not closed") == 2*(n+1)
		})
		require.Contains(t, log.String(), number)
		require.Contains(t, log.String(), model)
		_ = x
	}

	closed, err := endpoint.CallManaged[int](ctx, s, "number", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	released, err := endpoint.CallManaged[int](ctx, s, "number", fixture.ModelIn{Size: 9})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = released.Release(ctx)
	require.NoError(t, err)
	closed, released = nil, nil
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, 4, strings.Count(log.String(), "not closed"), "%v %v", closed, released)
}

// forgetHandle acquires a model and drops the handle, but not the tensor that it returns.
//
//go:noinline
func forgetHandle(t *testing.T, c *endpoint.Client, name string) *tensor.Tensor {
	h, err := c.Acquire(context.Background(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	for _, x := range h.StateDict().All() {
		return x
	}
	return nil
}

func TestLeakGuardHandle(t *testing.T) {
	o, socket := fixture.Owner(t)
	dev := fixture.Device(t)
	log := new(warnings)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Logger: log.logger()})
	require.NoError(t, err)
	defer c.Close()
	o.Publish(fixture.Model{Name: "m", Seed: 7})
	holders := func() int { return len(o.Models()[0].Versions[0].Holders) }
	want, err := module.Synthesize(dev, module.Synthetic{Seed: 7, Tensors: 3, Bytes: 1 << 16})
	require.NoError(t, err)
	defer want.Close()

	x := forgetHandle(t, c, "m")
	for range 5 {
		runtime.GC()
	}
	require.Equal(t, 1, holders(), "a tensor is in use")
	for _, y := range want.All() {
		require.Equal(t, y.Shape(), x.Shape())
		break
	}
	runtime.KeepAlive(x)
	x = nil
	collect(t, "the lease is back", func() bool { return holders() == 0 })
	_ = x
	proctest.Eventually(t, fixture.WaitLimit, "the warning", func() bool { return strings.Contains(log.String(), "handle not closed") })
	require.Contains(t, log.String(), "name=m version=1 server="+c.ServerID())

	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.NoError(t, h.Close())
	h = nil
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, 1, strings.Count(log.String(), "not closed"), "%v", h)
}

// keptLeaks records leaks during the test, and returns a count of the kept ones of a kind.
func keptLeaks(t *testing.T, kind string) func() int {
	var mu sync.Mutex
	var kept int
	driver.OnLeak(func(l driver.Leak) {
		mu.Lock()
		defer mu.Unlock()
		if l.Kept && l.Kind == kind && l.Device != "" {
			kept++
		}
	})
	t.Cleanup(func() { driver.OnLeak(nil) })
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return kept
	}
}

// sliceOfRef creates a reference and drops it and its value; a slice of the value's memory remains.
//
//go:noinline
func sliceOfRef(t *testing.T, c endpoint.Caller, size int) (slice []float32, id string) {
	x, id := forgetRef[*tensor.Tensor](t, c, "model", size)
	slice, err := tensor.Data[float32](x)
	require.NoError(t, err)
	return slice, id
}

// The server counts a reference while a slice of its memory remains.
func TestLeakGuardRefSlice(t *testing.T) {
	fixture.HostOnly(t, "slices are of host memory")
	check := func(t *testing.T, c endpoint.Caller, log *warnings) {
		t.Helper()
		ctx, leaks := context.Background(), keptLeaks(t, "reference to an object")
		kept := driver.Leaks().Kept
		slice, id := sliceOfRef(t, c, 5)
		collect(t, "the leak was reported", func() bool { return leaks() == 1 })
		info, err := c.ObjectInfo(ctx, id)
		require.NoError(t, err)
		require.EqualValues(t, 1, info.Refs)
		require.Greater(t, driver.Leaks().Kept, kept)
		proctest.Eventually(t, fixture.WaitLimit, "it was logged", func() bool { return strings.Contains(log.String(), "it is kept") })
		require.Contains(t, log.String(), "object="+id)
		require.Equal(t, []float32{5, 5, 5, 5, 5}, slice)
	}
	t.Run("of another process", func(t *testing.T) {
		_, socket := fixture.Owner(t)
		log := new(warnings)
		c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(fixture.Device(t)), Logger: log.logger()})
		require.NoError(t, err)
		defer c.Close()
		check(t, c, log)
	})
	t.Run("of this process", func(t *testing.T) {
		log, dev, r := new(warnings), fixture.Device(t), endpoint.NewRegistry()
		require.NoError(t, endpoint.Register(r, "model", func(_ context.Context, in fixture.ModelIn) (*tensor.Tensor, error) {
			return fixture.Filled(dev, in.Size, float32(in.Size))
		}, endpoint.Managed()))
		check(t, fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: log.logger()}), log)
	})
}

// sliceOfHandle acquires a model and drops the handle and its tensors; a slice of one remains.
//
//go:noinline
func sliceOfHandle(t *testing.T, c *endpoint.Client, name string) []byte {
	slice, err := tensor.RawData(forgetHandle(t, c, name))
	require.NoError(t, err)
	return slice
}

// The owner counts a lease while a slice of the version's memory remains.
func TestLeakGuardHandleSlice(t *testing.T) {
	fixture.HostOnly(t, "slices are of host memory")
	dev := fixture.Device(t)
	o, socket := fixture.Owner(t)
	log, leaks := new(warnings), keptLeaks(t, "lease of a version")
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev), Logger: log.logger()})
	require.NoError(t, err)
	defer c.Close()
	o.Publish(fixture.Model{Name: "m", Seed: 7})
	slice := sliceOfHandle(t, c, "m")
	want := bytes.Clone(slice)
	collect(t, "the leak was reported", func() bool { return leaks() == 1 })
	require.Len(t, o.Models()[0].Versions[0].Holders, 1)
	proctest.Eventually(t, fixture.WaitLimit, "it was logged", func() bool { return strings.Contains(log.String(), "its lease is kept") })
	require.Contains(t, log.String(), "name=m version=1 server="+c.ServerID())
	require.Equal(t, want, slice)
}
