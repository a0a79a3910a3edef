package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// registry has a function for each use of a result's memory.
func (o *slabOwner) registry(t testing.TB) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	empty := func(ctx context.Context, in pageIn) (*tensor.Tensor, error) {
		return tensor.Zeros(endpoint.ResultDevice(ctx, o.dev), tensor.Uint8, tensor.Shape{in.Bytes})
	}
	dirty := func(ctx context.Context, in pageIn) (*tensor.Tensor, error) {
		return tensor.Empty(endpoint.ResultDevice(ctx, o.dev), tensor.Uint8, tensor.Shape{in.Bytes})
	}
	keep := func(ctx context.Context, in pageIn) (*tensor.Tensor, error) {
		made, err := o.fill(ctx, in)
		if err != nil {
			return nil, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.kept = append(o.kept, made.Alias())
		return made, nil
	}
	exported := func(ctx context.Context, in pageIn) (*tensor.Tensor, error) {
		made, err := o.fill(ctx, in)
		if err != nil {
			return nil, err
		}
		h, err := made.Storage().Memory().Export()
		return made, errors.Join(err, h.Close())
	}
	slow := func(ctx context.Context, in pageIn) (*tensor.Tensor, error) {
		made, err := o.fill(ctx, in)
		<-o.stop // even after the call has ended
		return made, err
	}
	pair := func(ctx context.Context, in pageIn) ([]*tensor.Tensor, error) {
		made, err := o.fill(ctx, in)
		if err != nil {
			return nil, err
		}
		half, err := made.Narrow(0, 0, in.Bytes/2)
		own, ownErr := tensor.Full(o.dev, tensor.Uint8, tensor.Shape{4}, float64(in.Value))
		return []*tensor.Tensor{made, half, own}, errors.Join(err, ownErr)
	}
	large := func(ctx context.Context, in pageIn) (struct {
		Page *tensor.Tensor
		Text []byte
	}, error,
	) {
		made, err := o.fill(ctx, in)
		return struct {
			Page *tensor.Tensor
			Text []byte
		}{made, make([]byte, 1<<20)}, err
	}
	require.NoError(t, errors.Join(
		endpoint.Register(r, "fill", o.fill), endpoint.Register(r, "empty", empty), endpoint.Register(r, "dirty", dirty),
		endpoint.Register(r, "keep", keep), endpoint.Register(r, "exported", exported), endpoint.Register(r, "slow", slow),
		endpoint.Register(r, "pair", pair), endpoint.Register(r, "large", large),
		endpoint.Register(r, "cached", o.fill, endpoint.Cached()), endpoint.Register(r, "task", o.fill, endpoint.AsTask()),
		endpoint.Register(r, "first", func(_ context.Context, x *tensor.Tensor) (uint8, error) { return tensor.At[uint8](x, 0) }),
	))
	return r
}

// slabFixture returns an owner and a client of it over a socket.
func slabFixture(t testing.TB, limits endpoint.Limits) (*endpoint.Server, *slabOwner, *endpoint.Client) {
	t.Helper()
	o := &slabOwner{dev: fixture.Device(t), stop: make(chan struct{})}
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: o.registry(t), Logger: fixture.Discard(), Limits: limits})
	t.Cleanup(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, k := range o.kept {
			k.Close()
		}
	})
	return s, o, fixture.SocketClient(t, s)
}

// page calls a function that fills a result.
func page(t testing.TB, c *endpoint.Client, name string, bytes int64, value uint8) *tensor.Tensor {
	t.Helper()
	got, err := endpoint.Call[*tensor.Tensor](context.Background(), c, name, pageIn{bytes, value})
	require.NoError(t, err)
	return got
}

func slabsOf(t testing.TB, s *endpoint.Server) int64 {
	return fixture.LimitUse(t, s, "kept_mappings").Used
}

// A client that closes each result gets the next one of similar size in the same memory, until it stops calling.
func TestSlabReuse(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	var at *uint8
	same := 0
	for i := range 50 {
		got := page(t, c, "fill", 1<<20-int64(i)*100, uint8(i))
		require.NoError(t, isAll(got, uint8(i)))
		data, err := tensor.Data[uint8](got)
		require.NoError(t, err)
		if at == &data[0] {
			same++
		}
		at = &data[0]
		require.False(t, got.Storage().Memory().Writable())
		require.NoError(t, got.Close())
		require.LessOrEqual(t, slabsOf(t, s), int64(2))
	}
	// The next call may arrive before the server has released its sent result, which then uses a second slab.
	require.Greater(t, same, 30, "the mapping stays")
	require.LessOrEqual(t, fixture.LimitUse(t, s, "kept_bytes").Used, int64(2<<20))
	mapped := drivertest.SharedMappings()
	proctest.Eventually(t, 4*fixture.WaitLimit, "what is not used is given back", func() bool { return slabsOf(t, s) == 0 })
	proctest.Eventually(t, fixture.WaitLimit, "on both sides", func() bool { return drivertest.SharedMappings() <= mapped-2 })
	got := page(t, c, "fill", 1<<20, 7)
	require.NoError(t, isAll(got, 7))
	require.NoError(t, got.Close())
}

// Tensors, aliases of them and of views, and slices of results keep their content during later calls.
func TestSlabHeldByClient(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	type holder struct {
		value uint8
		kept  *tensor.Tensor
	}
	var held []holder
	hold := func(value uint8, how func(*tensor.Tensor) (*tensor.Tensor, error)) {
		first := page(t, c, "fill", 1<<16, value)
		kept, err := how(first)
		require.NoError(t, err)
		require.NoError(t, first.Close())
		held = append(held, holder{value, kept})
	}
	for round := range uint8(3) {
		hold(10*round, func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Alias(), nil })
		hold(10*round+1, func(x *tensor.Tensor) (*tensor.Tensor, error) {
			part, err := x.Narrow(0, 100, 50)
			return part.Alias(), err
		})
		hold(10*round+2, func(x *tensor.Tensor) (*tensor.Tensor, error) {
			s := x.Storage().Retain()
			defer s.Close()
			return tensor.New(s, x.Spec())
		})
		for i := range uint8(5) {
			require.NoError(t, page(t, c, "fill", 1<<16, 100+i).Close())
		}
		for _, h := range held {
			require.NoError(t, isAll(h.kept, h.value))
		}
	}
	require.EqualValues(t, 10, slabsOf(t, s), "one that comes back, and those that are held")
	for _, h := range held {
		require.NoError(t, h.kept.Close())
	}
	two, err := endpoint.Call[[]*tensor.Tensor](context.Background(), c, "pair", pageIn{1 << 16, 50})
	require.NoError(t, err)
	require.NoError(t, two[0].Close())
	require.NoError(t, page(t, c, "fill", 1<<16, 51).Close())
	require.NoError(t, isAll(two[1], 50), "the other tensor of the same memory")
	require.NoError(t, errors.Join(two[1].Close(), two[2].Close()))
}

// Functions keep, export and cache their results.
func TestSlabHeldByServer(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, o, c := slabFixture(t, endpoint.Limits{})
	for i := range uint8(5) {
		require.NoError(t, page(t, c, "keep", 1<<16, i).Close())
		require.NoError(t, page(t, c, "exported", 1<<16, 50+i).Close())
		got := page(t, c, "cached", 1<<16, 100)
		require.NoError(t, page(t, c, "task", 1<<16, 60+i).Close())
		require.NoError(t, isAll(got, 100))
		require.NoError(t, got.Close())
		require.NoError(t, page(t, c, "fill", 1<<16, 70+i).Close())
	}
	for i, kept := range o.kept {
		require.NoError(t, isAll(kept, uint8(i)))
	}
	proctest.Eventually(t, fixture.WaitLimit, "those that the owner keeps, one that comes back, and the cached one if its peers number it", func() bool {
		n := slabsOf(t, s)
		return n == 6 || n == 7
	})
}

// A client publishes a result, passes it on and exports its descriptor.
func TestSlabSharedFurther(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	ctx := context.Background()
	for i := range uint8(4) {
		got := page(t, c, "fill", 1<<16, i)
		require.Equal(t, i, must(endpoint.Call[uint8](ctx, c, "first", got))(t))
		sd := module.NewStateDict()
		require.NoError(t, sd.Set("x", got)) // takes ownership
		_, err := c.Publish(ctx, fmt.Sprint("m", i), sd, endpoint.PublishOptions{})
		require.NoError(t, err)
		require.NoError(t, sd.Close())
		require.NoError(t, page(t, c, "fill", 1<<16, 100).Close())
	}
	other := fixture.SocketClient(t, s)
	for i := range uint8(4) {
		h, err := other.Acquire(ctx, fmt.Sprint("m", i), endpoint.AcquireOptions{})
		require.NoError(t, err)
		x, there := h.StateDict().Get("x")
		require.True(t, there)
		require.NoError(t, isAll(x, i))
		require.NoError(t, h.Close())
	}
}

// must returns the value of a call that must succeed.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// Empty zeroes reused memory, and no session sees another's data.
func TestSlabZeroed(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	for range 5 {
		require.NoError(t, page(t, c, "fill", 1<<16, 77).Close())
		got := page(t, c, "empty", 1<<16, 0)
		require.NoError(t, isAll(got, 0))
		require.NoError(t, got.Close())
		require.NoError(t, page(t, c, "fill", 1<<16, 77).Close())
		got = page(t, c, "dirty", 1<<16, 0)
		require.NoError(t, isAll(got, 77), "what this session had itself")
		require.NoError(t, got.Close())
		other := fixture.SocketClient(t, s)
		got = page(t, other, "dirty", 1<<16, 0)
		require.NoError(t, isAll(got, 0), "another session")
		require.NoError(t, errors.Join(got.Close(), other.Close()))
	}
}

// Many goroutines of several clients get results, read them and close them, while their memory is reused.
func TestSlabConcurrently(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is not used again")
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	clients := []*endpoint.Client{c, fixture.SocketClient(t, s), fixture.SocketClient(t, s)}
	var all sync.WaitGroup
	for w := range 12 {
		all.Go(func() {
			c := clients[w%len(clients)]
			for i := range 60 {
				value, size := uint8((w*61+i)%0x80), int64(10_000*(1+i%3))
				got, err := endpoint.Call[*tensor.Tensor](context.Background(), c, "fill", pageIn{size, value})
				if err != nil {
					t.Error(err)
					return
				}
				for range i % 4 {
					err = errors.Join(err, isAll(got, value))
					time.Sleep(50 * time.Microsecond)
				}
				if err := errors.Join(err, isAll(got, value), got.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, fixture.LimitUse(t, s, "kept_mappings").Most, int64(3*4+3))
}

// Calls end at the client before they are answered: the memory of their results is reused.
func TestSlabOfAbandonedCalls(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is not used again")
	drivertest.Leaks(t)
	s, o, c := slabFixture(t, endpoint.Limits{})
	for range 30 {
		require.NoError(t, page(t, c, "fill", 1<<16, 1).Close())
		ctx, cancel := context.WithCancel(context.Background())
		began := o.runs.Load()
		var call sync.WaitGroup
		call.Go(func() {
			if got, err := endpoint.Call[*tensor.Tensor](ctx, c, "slow", pageIn{1 << 16, 2}); err == nil {
				got.Close()
			}
		})
		proctest.Eventually(t, fixture.WaitLimit, "it runs", func() bool { return o.runs.Load() > began })
		cancel()
		call.Wait()
		o.stop <- struct{}{}
		require.NoError(t, c.Call(context.Background(), "fill", pageIn{1 << 16, 3}, nil), "an answer that nobody looks at")
		var wrong struct{ Text int }
		require.Error(t, c.Call(context.Background(), "fill", pageIn{1 << 16, 3}, &wrong), "one that does not fit")
	}
	require.LessOrEqual(t, slabsOf(t, s), int64(3))
	proctest.Eventually(t, 4*fixture.WaitLimit, "all of it comes back", func() bool { return slabsOf(t, s) == 0 })
}

// The memory of results that no frame can carry is reused.
func TestSlabUnsendable(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is not used again")
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{AnswerBytesTotal: 100 << 10})
	for i := range 10 {
		var out struct{ Page *tensor.Tensor }
		require.ErrorIs(t, c.Call(context.Background(), "large", pageIn{1 << 16, 1}, &out), endpoint.ErrLimit)
		if i%2 == 0 {
			got := page(t, c, "fill", 1<<16, 2)
			require.NoError(t, isAll(got, 2))
			require.NoError(t, got.Close())
		}
	}
	require.LessOrEqual(t, slabsOf(t, s), int64(2), "the answer may come before the memory is back")
}

// More results are held than fit the slab limits, without an effect on calls.
func TestSlabLimit(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	for name, test := range map[string]struct {
		limits endpoint.Limits
		most   int64
	}{
		"slabs": {endpoint.Limits{}, 64}, "bytes": {endpoint.Limits{KeptBytes: 100 << 10}, 6},
		"bytes of all": {endpoint.Limits{KeptBytesTotal: 50 << 10}, 3}, "off": {endpoint.Limits{KeptBytes: -1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, c := slabFixture(t, test.limits)
			for range 2 {
				var held []*tensor.Tensor
				for i := range 70 {
					held = append(held, page(t, c, "fill", 16<<10, uint8(i)))
				}
				require.Equal(t, test.most, slabsOf(t, s))
				for i, x := range held {
					require.NoError(t, isAll(x, uint8(i)))
					require.NoError(t, x.Close())
				}
				for _, size := range []int64{1, 5000, 200 << 10} { // free slabs are replaced
					got := page(t, c, "fill", size, 3)
					require.NoError(t, isAll(got, 3))
					require.NoError(t, got.Close())
				}
				bytes := fixture.LimitUse(t, s, "kept_bytes")
				require.LessOrEqual(t, bytes.Used, min(bytes.Client, bytes.All))
				require.LessOrEqual(t, slabsOf(t, s), int64(64))
			}
		})
	}
}

// The device requests memory when it has none left.
func TestSlabEviction(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	dev, err := host.Open()
	require.NoError(t, err)
	o := &slabOwner{dev: dev}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Devices: []driver.Device{dev}, Registry: o.registry(t), Logger: fixture.Discard()})
	require.NoError(t, err)
	go s.Serve(context.Background())
	t.Cleanup(func() { s.Close() })
	c := fixture.SocketClient(t, s)
	held := page(t, c, "fill", 1<<20, 9)
	require.NoError(t, page(t, c, "fill", 1<<20, 1).Close())
	require.NoError(t, page(t, c, "fill", 1<<20, 1).Close())
	proctest.Eventually(t, fixture.WaitLimit, "what nobody uses goes", func() bool {
		dev.RetryAfterReclaim(1<<20, driver.ErrOutOfMemory)
		return slabsOf(t, s) == 1
	})
	require.NoError(t, isAll(held, 9))
	got := page(t, c, "fill", 1<<20, 2)
	require.NoError(t, isAll(got, 2))
	require.NoError(t, errors.Join(held.Close(), got.Close()))
}

// A client's memory stays valid when its owner ends, and when the client disconnects.
func TestSlabOutlivesConnection(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is not used again")
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	require.NoError(t, page(t, c, "fill", 1<<16, 1).Close())
	held := page(t, c, "fill", 1<<16, 2)
	other := fixture.SocketClient(t, s)
	kept := page(t, other, "fill", 1<<16, 3)
	require.NoError(t, other.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the slabs of a client go with it", func() bool { return slabsOf(t, s) <= 2 })
	require.NoError(t, s.Close())
	require.NoError(t, isAll(held, 2))
	require.NoError(t, isAll(kept, 3))
	require.NoError(t, errors.Join(held.Close(), kept.Close()))
}

// BenchmarkResults measures a call whose result is in reused memory, both sides in this process, beside the time to
// fill the memory.
func BenchmarkResults(b *testing.B) {
	fixture.HostOnly(b, "memory of other devices is not used again")
	_, _, c := slabFixture(b, endpoint.Limits{})
	for _, size := range []int64{1, 1 << 20, 8 << 20} {
		b.Run(fmt.Sprintf("KiB=%d", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x, err := endpoint.Call[*tensor.Tensor](context.Background(), c, "dirty", pageIn{Bytes: size})
				require.NoError(b, err)
				require.NoError(b, x.Close())
			}
		})
	}
}
