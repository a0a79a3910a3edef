package engine_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// overwrite sets all elements to one value, bypassing the tensor's storage.
func overwrite(t testing.TB, x *tensor.Tensor, value float32) {
	t.Helper()
	source, err := fixture.Filled(x.Device(), int(x.NumElements()), value)
	require.NoError(t, err)
	defer source.Close()
	raw, err := source.ReadBytes()
	require.NoError(t, err)
	_, err = x.Storage().Memory().WriteAt(raw, 0)
	require.NoError(t, err)
}

func TestCacheKeyOfServerMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	other := fixture.AnotherClient(t, c, dev)

	t.Run("published", func(t *testing.T) {
		before := o.Ran("sum")
		publish := func(seed uint64) { o.Publish(fixture.Model{Name: "m", Seed: seed, Tensors: 2}) }
		acquire := func(c *endpoint.Client) *tensor.Tensor {
			h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { h.Close() })
			for _, x := range h.StateDict().All() {
				return x
			}
			return nil
		}
		publish(1)
		mine, theirs := acquire(c), acquire(other)
		want := fixture.SumOf(t, c, mine)
		require.Equal(t, want, fixture.SumOf(t, c, mine))
		require.Equal(t, want, fixture.SumOf(t, other, theirs), "it is the same memory in every client")
		require.Equal(t, before+1, o.Ran("sum"))
		half, err := mine.Narrow(0, 0, mine.Shape()[0]/2)
		require.NoError(t, err)
		fixture.SumOf(t, c, half)
		require.Equal(t, before+2, o.Ran("sum"), "a part of it is another argument")
		publish(2)
		fixture.SumOf(t, c, acquire(c))
		require.Equal(t, before+3, o.Ran("sum"), "the next version is other memory")
	})
	t.Run("result", func(t *testing.T) {
		before := o.Ran("sum")
		for _, c := range []*endpoint.Client{c, c, other} {
			x, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 5})
			require.NoError(t, err)
			require.EqualValues(t, 25, fixture.SumOf(t, c, x))
			require.NoError(t, x.Close())
		}
		require.Equal(t, before+1, o.Ran("sum"))
	})
	t.Run("managed result", func(t *testing.T) {
		before := o.Ran("sum")
		for range 2 {
			ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 6})
			require.NoError(t, err)
			defer ref.Close()
			require.EqualValues(t, 36, fixture.SumOf(t, c, ref.Value()))
		}
		require.Equal(t, before+1, o.Ran("sum"))
	})
}

// Arguments in memory that their own process cannot import are found by name.
func TestCallArgumentsLegacyIPC(t *testing.T) {
	if name := os.Getenv(fixture.DeviceVariable); name == "" || name == "host" {
		t.Skip("there is no such memory on the host")
	}
	drivertest.Leaks(t)
	legacy := func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, fixture.KindVariable+"="+string(driver.CUDAIPC)) }
	o, socket, ctx := fixture.Start(t, legacy), proctest.SocketPath(t), context.Background()
	o.Serve(socket)
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(fixture.Device(t))})
	require.NoError(t, err)
	defer c.Close()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 6})
	require.NoError(t, err)
	defer ref.Close()
	h, err := ref.Value().Storage().Memory().Export()
	require.NoError(t, err)
	require.Equal(t, driver.CUDAIPC, h.Kind)
	for range 2 {
		require.EqualValues(t, 36, fixture.SumOf(t, c, ref.Value()))
	}
	require.EqualValues(t, 1, o.Ran("sum"))
}

// Memory of the owner that is still written is not part of a key.
func TestCacheKeyOfOthersMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	poke := func(value float32) { require.NoError(t, c.Call(ctx, "poke", value, nil)) }

	kept, err := endpoint.Call[map[string][]*tensor.Tensor](ctx, c, "kept", nil)
	require.NoError(t, err)
	x := kept["list"][0]
	defer x.Close()
	for _, value := range []float32{2, 3} {
		poke(value)
		require.EqualValues(t, 4*value, fixture.SumOf(t, c, x), "the result of an endpoint that is not cached is no promise")
	}

	mine, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer mine.Close()
	echo, err := endpoint.Call[fixture.NestedOut](ctx, c, "nested", fixture.NestedIn{Any: mine})
	require.NoError(t, err)
	defer echo.Model.Close()
	same := echo.Same.(*tensor.Tensor)
	defer same.Close()
	for _, value := range []float32{2, 3} {
		overwrite(t, mine, value)
		require.EqualValues(t, 4*value, fixture.SumOf(t, c, same), "an argument that came back is the caller's still")
	}

	lent, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer lent.Close()
	require.EqualValues(t, 16, fixture.SumOf(t, c, lent))
	require.NoError(t, c.Call(ctx, "fill", fixture.ScaleIn{X: lent, By: 7}, nil))
	require.EqualValues(t, 28, fixture.SumOf(t, c, lent), "a function wrote to it")
}

// A published tensor is passed to a function that writes. If frozen memory prevents that, the cached result stays
// valid.
func TestCacheKeyOfReadOnlyMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	o.Publish(fixture.Model{Name: "m", Tensors: 1})
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	for _, x := range h.StateDict().All() {
		before := fixture.SumOf(t, c, x)
		err := c.Call(ctx, "fill", fixture.ScaleIn{X: x}, nil)
		if dev.Info().Type == driver.CPU {
			require.ErrorIs(t, err, driver.ErrReadOnly)
			require.Equal(t, before, fixture.SumOf(t, c, x))
			require.EqualValues(t, 1, o.Ran("sum"))
			continue
		}
		fixture.SumOf(t, c, x)
		require.EqualValues(t, 2, o.Ran("sum"), "on CUDA whoever maps it decides whether to write")
	}
}

// A client claims that its memory is memory lent by the owner. The function gets the owner's memory.
func TestHostileMemoryNames(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	lent, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer lent.Close()
	name, ok := lent.Storage().Lent()
	require.True(t, ok)
	require.NotEmpty(t, name)
	forged := func(name string) *tensor.Tensor {
		own, err := fixture.Filled(dev, 4, 100)
		require.NoError(t, err)
		defer own.Close()
		h, err := own.Storage().Memory().Export()
		require.NoError(t, err)
		defer h.Close()
		mem, err := dev.Import(h, driver.ImportOptions{})
		if err != nil {
			mem = own.Storage().Retain().Memory() // a device whose memory its own process cannot import
		}
		s := tensor.NewLentStorage(mem, name)
		x, err := tensor.New(s, own.Spec())
		require.NoError(t, err)
		require.NoError(t, s.Close())
		t.Cleanup(func() { x.Close() })
		return x
	}
	require.EqualValues(t, 16, fixture.SumOf(t, c, forged(name)))
	require.EqualValues(t, 16, fixture.SumOf(t, fixture.AnotherClient(t, c, dev), lent))
	for range 2 {
		require.EqualValues(t, 400, fixture.SumOf(t, c, forged(name+"0")), "a name that the owner does not know is none")
		require.EqualValues(t, 400, fixture.SumOf(t, c, forged("/another.sock"+name[strings.IndexByte(name, 0):])), "another owner's name is not repeated")
	}
	require.EqualValues(t, 5, o.Ran("sum"))
}

func TestCacheKeyOfVersionedMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer x.Close()
	runs := func(c *endpoint.Client, sum float32, runs uint64, why string) {
		t.Helper()
		require.EqualValues(t, sum, fixture.SumOf(t, c, x), why)
		require.Equal(t, runs, o.Ran("sum"), why)
	}
	runs(c, 4, 1, "without a promise")
	runs(c, 4, 2, "without a promise")
	x.Storage().Touch()
	runs(c, 4, 3, "the first of a version")
	runs(c, 4, 3, "the same bytes")
	overwrite(t, x, 2)
	x.Storage().Touch()
	runs(c, 8, 4, "other bytes, and said so")
	require.NoError(t, x.Zero())
	runs(c, 0, 5, "a method of package tensor says so by itself")
	runs(c, 0, 5, "the same bytes")
	runs(fixture.AnotherClient(t, c, dev), 0, 6, "a client's word counts for its own session only")
}

// Two processes have storages with equal numbers and versions but different bytes.
func TestCacheKeyPerSession(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	for i, value := range []float32{3, 5} {
		c := fixture.Client(t, socket)
		for range 2 {
			require.EqualValues(t, 4*value, sumTouched(c, value))
		}
		require.EqualValues(t, i+1, o.Ran("sum"))
	}
}

// Cache keys of calls within the process.
func TestCacheKeyInProcess(t *testing.T) {
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	var counts fixture.Counters
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Devices: fixture.DriversOf(dev), Registry: fixture.Registry(dev, &counts)})
	require.NoError(t, err)
	defer s.Close()
	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer x.Close()
	runs := func(x *tensor.Tensor, sum float32, runs uint64) {
		t.Helper()
		require.EqualValues(t, sum, fixture.SumOf(t, s, x))
		require.Equal(t, runs, counts.Get("sum"))
	}
	runs(x, 4, 1)
	runs(x, 4, 2)
	x.Storage().Touch()
	runs(x, 4, 3)
	runs(x, 4, 3)
	require.NoError(t, x.Zero())
	runs(x, 0, 4)
	lent, err := endpoint.Call[*tensor.Tensor](context.Background(), s, "plain model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	defer lent.Close()
	runs(lent, 4, 5)
	runs(lent, 4, 5)
	source, err := fixture.Filled(dev, 2, 9)
	require.NoError(t, err)
	defer source.Close()
	require.NoError(t, s.Call(context.Background(), "fill", fixture.ScaleIn{X: lent, By: 9}, nil))
	runs(lent, 18, 6)
}

func TestCacheUncachedStats(t *testing.T) {
	t.Parallel()
	dev := fixture.Device(t)
	var counts fixture.Counters
	var log fixture.Lines
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: proctest.SocketPath(t), Devices: fixture.DriversOf(dev), Registry: fixture.Registry(dev, &counts),
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	defer s.Close()
	go s.Serve(context.Background())
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer x.Close()
	for range 3 {
		fixture.SumOf(t, s, x)
	}
	x.Storage().Touch()
	fixture.SumOf(t, s, x)
	list, err := c.Endpoints(context.Background())
	require.NoError(t, err)
	for _, e := range list {
		want := uint64(0)
		if e.Name == "sum" {
			want = 3
		}
		require.Equal(t, want, e.Uncached, e.Name)
	}
	require.Equal(t, 1, strings.Count(log.String(), "not cached"), log.String())
	require.Contains(t, log.String(), "endpoint=sum")
}
