package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A nil result is cached and can be invalidated.
func TestCacheInvalidateNil(t *testing.T) {
	t.Parallel()
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	there, err := c.InvalidateCall(ctx, "no model", nil)
	require.NoError(t, err)
	require.False(t, there)
	require.NoError(t, c.Call(ctx, "no model", nil, nil))
	there, err = c.InvalidateCall(ctx, "no model", nil)
	require.NoError(t, err)
	require.True(t, there)
	require.NoError(t, c.Call(ctx, "no model", nil, nil))
	require.EqualValues(t, 2, o.Ran("no model"))
}

// A result that cannot be encoded is not cached.
func TestCacheUnencodable(t *testing.T) {
	t.Parallel()
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	for n := range uint64(3) {
		require.Error(t, c.Call(ctx, "channel", nil, nil))
		require.Equal(t, n+1, o.Ran("channel"), "the function runs again")
	}
	// The same holds for a result that the peer could not decode, or that exceeds a frame.
	c, o = fixture.ClientOfOwnerWith(t, fixture.Service{Frame: 2 << 20})
	for n := range uint64(2) {
		require.ErrorContains(t, c.Call(ctx, "list", fixture.ModelIn{Size: 2 << 20}, nil), "max number of elements")
		require.Equal(t, n+1, o.Ran("list"))
		require.ErrorIs(t, c.Call(ctx, "bytes", struct{ N int }{3 << 20}, nil), endpoint.ErrLimit)
		require.Equal(t, n+1, o.Ran("bytes"))
	}
	require.NoError(t, c.Call(ctx, "list", fixture.ModelIn{Size: 1 << 20}, nil))
}

// A result that was invalidated during its run is not cached.
func TestCacheInvalidateDuringRun(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	in := fixture.GateIn{Gate: "b13"}
	results := make(chan uint64, 1)
	go func() {
		n, _ := endpoint.Call[uint64](ctx, c, "build", in)
		results <- n
	}()
	proctest.Eventually(t, fixture.WaitLimit, "the build is running", func() bool { return o.Ran("build") == 1 })
	n, err := c.InvalidateEndpoint(ctx, "build")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	fixture.OpenGate(t, c, "b13")
	require.EqualValues(t, 1, <-results, "who asked before gets what was begun before")
	second, err := endpoint.Call[uint64](ctx, c, "build", in)
	require.NoError(t, err)
	require.EqualValues(t, 2, second, "who asks after gets what was begun after")
	third, err := endpoint.Call[uint64](ctx, c, "build", in)
	require.NoError(t, err)
	require.EqualValues(t, 2, third)
}

// A function that ends its goroutine fails the call, and the next call runs again.
func TestCacheGoexit(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	for _, name := range []string{"exit", "exit uncached", "exit task", "panic"} {
		for range 2 {
			require.Error(t, c.Call(ctx, name, nil, nil), name)
		}
	}
	job, err := c.Submit(ctx, "exit uncached", nil)
	require.NoError(t, err)
	info, err := job.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskFailed, info.State)
	require.ErrorIs(t, info.Err(), task.ErrFailed)
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Inflight)
	require.Zero(t, server.Stats.TasksRunning)
}

// Callers of two processes wait for one run that ends without a result.
func TestCacheGoexitWaiters(t *testing.T) {
	drivertest.Leaks(t)
	const each = 4
	o, socket := fixture.Owner(t)
	dial := func() *endpoint.Client {
		c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	ctx, c, other := context.Background(), dial(), fixture.Client(t, socket)
	for i, name := range []string{"exit at gate", "panic at gate"} {
		results := make(chan string, 2*each)
		for range each {
			go func() { results <- fmt.Sprint(c.Call(ctx, name, fixture.GateIn{Gate: name}, nil)) }()
		}
		go func() {
			texts, err := joinOp.Ask(other.Process, joining{name, name, each})
			if err != nil {
				t.Error(err)
			}
			for _, text := range texts {
				results <- text
			}
		}()
		proctest.Eventually(t, fixture.WaitLimit, "all wait for one run", func() bool {
			server, err := c.ServerInfo(ctx)
			return err == nil && server.Stats.CacheMisses == uint64(i+1) && server.Stats.CacheJoins == uint64((i+1)*(2*each-1))
		})
		fixture.OpenGate(t, c, name)
		for range 2 * each {
			require.Contains(t, <-results, map[string]string{"exit at gate": "Goexit", "panic at gate": "at the gate"}[name])
		}
		require.EqualValues(t, 1, o.Ran(name))
	}
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Inflight)
	require.Zero(t, server.Stats.CacheEntries)
}

// Waiters of one managed result share one object.
func TestCacheManagedWaiters(t *testing.T) {
	drivertest.Leaks(t)
	_, socket := fixture.Owner(t)
	dev := fixture.Device(t)
	ctx := context.Background()
	var all sync.WaitGroup
	for range 4 {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev)})
		require.NoError(t, err)
		defer c.Close()
		all.Go(func() {
			for range 50 {
				ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
				if err == nil {
					_, err = ref.Info(ctx)
				}
				if err == nil {
					_, err = ref.Release(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
				ref.Close()
			}
		})
	}
	all.Wait()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Objects)
}

func TestCacheSingleFlight(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	in := fixture.GateIn{Gate: "share", N: 9}
	const callers = 16
	results := make(chan int, callers)
	for range callers {
		go func() {
			n, _ := endpoint.Call[int](ctx, c, "gated", in)
			results <- n
		}()
	}
	proctest.Eventually(t, fixture.WaitLimit, "all wait for one run", func() bool {
		server, err := c.ServerInfo(ctx)
		return err == nil && server.Stats.CacheMisses+server.Stats.CacheJoins == callers
	})
	fixture.OpenGate(t, c, "share")
	for range callers {
		require.Equal(t, 9, <-results)
	}
	require.EqualValues(t, 1, o.Ran("gated"))
}

func TestCacheSingleFlightCancel(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	leaving, leave := context.WithCancel(ctx)
	in := fixture.GateIn{Gate: "all", N: 3}
	first := make(chan error, 1)
	go func() { first <- c.Call(leaving, "gated", in, nil) }()
	proctest.Eventually(t, fixture.WaitLimit, "it runs", func() bool { return o.Ran("gated") == 1 })
	second := make(chan error, 1)
	go func() { second <- c.Call(ctx, "gated", in, nil) }()
	proctest.Eventually(t, fixture.WaitLimit, "the other has joined", func() bool {
		server, err := c.ServerInfo(ctx)
		return err == nil && server.Stats.CacheJoins == 1
	})
	leave()
	require.ErrorIs(t, <-first, context.Canceled)
	fixture.OpenGate(t, c, "all")
	require.NoError(t, <-second, "who started the run has left, the run goes on")
	require.Zero(t, o.Ran("gated told to stop"))

	leaving, leave = context.WithCancel(ctx)
	go func() { first <- c.Call(leaving, "gated", fixture.GateIn{Gate: "nobody"}, nil) }()
	proctest.Eventually(t, fixture.WaitLimit, "it runs", func() bool { return o.Ran("gated") == 2 })
	leave()
	require.ErrorIs(t, <-first, context.Canceled)
	proctest.Eventually(t, fixture.WaitLimit, "the run is told to stop when the last one leaves", func() bool { return o.Ran("gated told to stop") == 1 })
}

// Concurrent submissions each get a task.
func TestTaskSubmitConcurrently(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	const workers, each = 8, 25
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				if _, err := c.Submit(ctx, "double", struct{ N int }{w*each + i}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	tasks, err := c.Tasks(ctx, endpoint.TaskFilter{Endpoint: "double", Mine: true})
	require.NoError(t, err)
	require.Len(t, tasks, workers*each)
	for _, info := range tasks {
		end, err := c.Task(info.ID).Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, endpoint.TaskCompleted, end.State)
	}
	none, err := c.Tasks(ctx, endpoint.TaskFilter{States: []endpoint.TaskState{endpoint.TaskRunning}, Endpoint: "double"})
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = c.Tasks(ctx, endpoint.TaskFilter{States: []endpoint.TaskState{"busy"}})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

// The cache key of a managed object ends with the object.
func TestCacheKeyEndsWithObject(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	for n := range 10 {
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: n + 1})
		require.NoError(t, err)
		again, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: n + 1, Label: "not part of the key"})
		require.NoError(t, err)
		require.Equal(t, ref.ID(), again.ID(), "a cached object is handed out again")
		info, err := ref.Info(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 2, info.Refs)
		require.Contains(t, info.CacheKey, "model:")
		for _, r := range []*endpoint.Ref[*tensor.Tensor]{ref, again} {
			_, err = r.Release(ctx)
			require.NoError(t, err)
			require.NoError(t, r.Close())
		}
	}
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.CacheEntries)
	require.Zero(t, server.Stats.CacheBytes)
	require.EqualValues(t, 10, o.Ran("model"))
	require.EqualValues(t, 10, server.Stats.CacheMisses)
}

func TestCacheInvalidateKeepsResultsInUse(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 6})
	require.NoError(t, err)
	defer ref.Close()
	there, err := c.InvalidateCall(ctx, "model", fixture.ModelIn{Size: 6})
	require.NoError(t, err)
	require.True(t, there)
	_, err = ref.Info(ctx)
	require.NoError(t, err)
	next, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 6})
	require.NoError(t, err)
	defer next.Close()
	require.NotEqual(t, ref.ID(), next.ID())
	require.EqualValues(t, 2, o.Ran("model"))
	_, err = c.InvalidateEndpoint(ctx, "nothing")
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
}
