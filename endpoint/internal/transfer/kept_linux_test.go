package transfer_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// keptRegistry has functions that read and that write their arguments, and counts the calls of both.
func keptRegistry(t *testing.T, runs *sync.Map) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	count := func(name string) {
		n, _ := runs.LoadOrStore(name, 0)
		runs.Store(name, n.(int)+1)
	}
	require.NoError(t, endpoint.Register(r, "first", func(_ context.Context, x *tensor.Tensor) (float32, error) {
		count("first")
		values, err := tensor.Float32s(x)
		if err != nil {
			return 0, err
		}
		return values[0], nil
	}, endpoint.Serialized()))
	require.NoError(t, endpoint.Register(r, "fill", func(_ context.Context, x *tensor.Tensor) (bool, error) {
		count("fill")
		return true, x.Fill(5)
	}, endpoint.WritableArguments(), endpoint.Serialized()))
	return r
}

// got returns the value of a call that must succeed.
func got[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// keptFixture returns a server and a client over a socket.
func keptFixture(t *testing.T, limits endpoint.Limits) (*endpoint.Server, *endpoint.Client, driver.Device, *sync.Map) {
	t.Helper()
	runs := new(sync.Map)
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: keptRegistry(t, runs), Logger: fixture.Discard(), Limits: limits})
	dev := fixture.Device(t)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return s, c, dev, runs
}

// The memory of an argument is mapped once for many calls. Writes to it are visible. It is unmapped when no call uses
// it, and when the client has left.
func TestKeptArgumentsStayMapped(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is kept alike")
	fixture.RequireFeature(t, message.FeatureKeep)
	drivertest.Leaks(t)
	s, c, dev, _ := keptFixture(t, endpoint.Limits{})
	ctx := context.Background()
	x := vector(t, dev, 1, 2, 3)
	defer x.Close()
	kept := func() int64 { return fixture.LimitUse(t, s, "kept_mappings").Used }
	for i := range 10 {
		require.NoError(t, x.Fill(float64(i)))
		require.EqualValues(t, i, got(endpoint.Call[float32](ctx, c, "first", x))(t))
		switch i {
		case 0:
			require.Zero(t, kept(), "memory of one call alone is not kept")
		default:
			require.EqualValues(t, 1, kept())
		}
	}
	require.EqualValues(t, x.Storage().Bytes(), fixture.LimitUse(t, s, "kept_bytes").Used)
	proctest.Eventually(t, fixture.WaitLimit, "memory that no call names is unmapped", func() bool { return kept() == 0 })
	require.EqualValues(t, 9, got(endpoint.Call[float32](ctx, c, "first", x))(t), "the memory goes along once more")
	require.EqualValues(t, 9, got(endpoint.Call[float32](ctx, c, "first", x))(t))
	require.EqualValues(t, 1, kept())
	require.NoError(t, c.Close())
	proctest.Eventually(t, fixture.WaitLimit, "what was kept goes with the client", func() bool { return kept() == 0 })
}

// An endpoint that writes its arguments receives all memory with each call, and runs once for each.
func TestKeptArgumentsNotWritable(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is kept alike")
	drivertest.Leaks(t)
	s, c, dev, runs := keptFixture(t, endpoint.Limits{})
	x := vector(t, dev, 1, 2, 3)
	defer x.Close()
	for range 10 {
		require.NoError(t, x.Fill(1))
		require.True(t, got(endpoint.Call[bool](context.Background(), c, "fill", x))(t))
		require.Equal(t, []float32{5, 5, 5}, got(tensor.Float32s(x))(t))
	}
	n, _ := runs.Load("fill")
	require.Equal(t, 10, n)
	require.Zero(t, fixture.LimitUse(t, s, "kept_mappings").Used)
}

// More memory than is kept is passed in turns, without an effect on the calls.
func TestKeptMemoryLimit(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is kept alike")
	drivertest.Leaks(t)
	ctx := context.Background()
	t.Run("storages", func(t *testing.T) {
		s, c, dev, runs := keptFixture(t, endpoint.Limits{})
		var list []*tensor.Tensor
		for i := range 100 {
			x := vector(t, dev, float32(i))
			defer x.Close()
			list = append(list, x)
		}
		for _, n := range []int{100, 100, 60, 60, 60, 100, 40, 40, 40} {
			for i, x := range list[:n] {
				require.EqualValues(t, i, got(endpoint.Call[float32](ctx, c, "first", x))(t))
			}
			require.LessOrEqual(t, fixture.LimitUse(t, s, "kept_mappings").Used, int64(64))
		}
		n, _ := runs.Load("first")
		require.Equal(t, 100*3+60*3+40*3, n, "each call ran once")
	})
	t.Run("bytes", func(t *testing.T) {
		s, c, dev, _ := keptFixture(t, endpoint.Limits{KeptBytes: 10_000})
		for range 3 {
			for _, n := range []int{1000, 2000, 5000} {
				x := vector(t, dev, make([]float32, n)...)
				for range 4 {
					require.Zero(t, got(endpoint.Call[float32](ctx, c, "first", x))(t))
				}
				require.NoError(t, x.Close())
				require.LessOrEqual(t, fixture.LimitUse(t, s, "kept_bytes").Used, int64(10_000))
			}
		}
	})
	t.Run("off", func(t *testing.T) {
		s, c, dev, _ := keptFixture(t, endpoint.Limits{KeptBytes: -1})
		x := vector(t, dev, 7)
		defer x.Close()
		for range 6 {
			require.EqualValues(t, 7, got(endpoint.Call[float32](ctx, c, "first", x))(t))
		}
		require.Zero(t, fixture.LimitUse(t, s, "kept_mappings").Used)
	})
}

// Many goroutines pass few tensors at once without an effect on the calls.
func TestKeptArgumentsConcurrently(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is kept alike")
	fixture.RequireFeature(t, message.FeatureKeep)
	drivertest.Leaks(t)
	s, c, dev, runs := keptFixture(t, endpoint.Limits{})
	var list []*tensor.Tensor
	for i := range 8 {
		x := vector(t, dev, float32(i))
		defer x.Close()
		list = append(list, x)
	}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 50 {
				at := (i + w) % len(list)
				value, err := endpoint.Call[float32](context.Background(), c, "first", list[at])
				if err != nil || value != float32(at) {
					t.Errorf("tensor %d: %v, %v", at, value, err)
				}
			}
		})
	}
	all.Wait()
	n, _ := runs.Load("first")
	require.Equal(t, 8*50, n)
	require.EqualValues(t, 8, fixture.LimitUse(t, s, "kept_mappings").Used)
}

// A peer refers to memory that it has not sent, or of another size, and sends invalid data.
func TestKeptMemoryUnknown(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is kept alike")
	drivertest.Leaks(t)
	s, _, dev, runs := keptFixture(t, endpoint.Limits{})
	p := fixture.PolitePeer(t, s.Socket())
	info := dev.Info()
	for _, h := range []message.Handle{
		{Kind: "memfd", Device: message.UUID(info.UUID), Bytes: 4, File: -1, Storage: 1},
		{Kind: "memfd", Device: message.UUID(info.UUID), Bytes: 1 << 62, File: -1, Storage: 1 << 63},
		{Kind: "nonsense", Bytes: 4, File: -1, Storage: 7},
	} {
		id := p.Ask(message.OpCall, message.Call{Endpoint: "first", Args: message.RawMessage{0xf6}, Handles: []message.Handle{h}})
		require.Equal(t, message.CodeNotFound, p.AnswerTo(id))
	}
	_, ran := runs.Load("first")
	require.False(t, ran)
	require.Zero(t, fixture.LimitUse(t, s, "kept_mappings").Used)
}

// vector returns a tensor of float32s.
func vector(t testing.TB, dev driver.Device, values ...float32) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(dev, tensor.Shape{int64(len(values))}, values)
	require.NoError(t, err)
	return x
}

// The endpoint list shows which endpoints write to their arguments and so need writable memory.
func TestEndpointsThatWriteSaySo(t *testing.T) {
	t.Parallel()
	_, c, _, _ := keptFixture(t, endpoint.Limits{})
	list := got(c.Endpoints(t.Context()))(t)
	require.Len(t, list, 2)
	for _, e := range list {
		require.Equal(t, e.Name == "fill", e.Writable, e.Name)
	}
}
