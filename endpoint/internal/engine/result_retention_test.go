package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A task does not keep a result that was fetched and released.
func TestTaskKeepsNoFetchedResult(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	before := o.Count()
	for range 3 {
		x, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model task", fixture.ModelIn{Size: 1 << 16})
		require.NoError(t, err)
		require.NoError(t, x.Close())
	}
	proctest.Eventually(t, fixture.WaitLimit, "the memory went with the answer", func() bool {
		after := o.Count()
		return after.Mappings <= before.Mappings && after.Files <= before.Files
	})
	known, err := c.Tasks(ctx, endpoint.TaskFilter{Endpoint: "plain model task"})
	require.NoError(t, err)
	require.Len(t, known, 3, "what became of them is known")
	require.Equal(t, endpoint.TaskCompleted, known[0].State)
	require.ErrorIs(t, c.Task(known[0].ID).Result(ctx, nil), endpoint.ErrStale)

	info, err := c.Submit(ctx, "plain model task", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	_, err = info.Wait(ctx)
	require.NoError(t, err)
	for range 2 {
		var x *tensor.Tensor
		require.NoError(t, info.Result(ctx, &x), "who has submitted it fetches it as often as he likes")
		require.NoError(t, x.Close())
	}
}

func TestTaskResultBytes(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Bytes: 2500}})
	register(t, r, "bytes", func(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil }, endpoint.NoCache(), endpoint.AsTask())
	submit := func(n int) string {
		job, err := c.Submit(ctx, "bytes", n)
		require.NoError(t, err)
		info, err := job.Wait(ctx)
		require.NoError(t, err)
		require.NoError(t, info.Err())
		return info.ID
	}
	first, second := submit(1000), submit(1001)
	for range 10 { // not counted: they are released when they are answered
		require.NoError(t, c.Call(ctx, "bytes", 2000, nil))
	}
	require.NoError(t, c.Task(first).Result(ctx, nil))
	third := submit(1002)
	require.ErrorIs(t, c.Task(first).Result(ctx, nil), endpoint.ErrStale)
	require.ErrorIs(t, s.Task(first).Result(ctx, nil), endpoint.ErrStale)
	require.NoError(t, c.Task(second).Result(ctx, nil))
	require.NoError(t, c.Task(third).Result(ctx, nil))
	info, err := c.Task(first).Info(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCompleted, info.State)
}

// roomFor returns a server whose cache has room for one result of the endpoint "object", whose runs are counted.
func roomFor(t *testing.T, results endpoint.ResultOptions, opts ...endpoint.Option) (context.Context, *endpoint.Server, *endpoint.Client, *fixture.Counters) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Results: results})
	counts := new(fixture.Counters)
	register(t, r, "object", func(_ context.Context, in fixture.ModelIn) ([]byte, error) {
		counts.Add(in.Label)
		return make([]byte, 1000), nil
	}, opts...)
	return ctx, s, c, counts
}

var roomForOne = map[string]endpoint.ResultOptions{"entries": {Entries: 1}, "bytes": {Bytes: 1500}}

func TestCacheKeepsWhatClientsHold(t *testing.T) {
	for name, results := range roomForOne {
		t.Run(name, func(t *testing.T) {
			ctx, s, c, counts := roomFor(t, results, endpoint.Managed())
			ref, err := endpoint.CallManaged[[]byte](ctx, c, "object", fixture.ModelIn{Label: "held"})
			require.NoError(t, err)
			for _, label := range []string{"a", "b", "c"} {
				require.NoError(t, c.Call(ctx, "object", fixture.ModelIn{Label: label}, nil))
			}
			again, err := endpoint.CallManaged[[]byte](ctx, s, "object", fixture.ModelIn{Label: "held"})
			require.NoError(t, err)
			require.Equal(t, ref.ID(), again.ID())
			require.EqualValues(t, 1, counts.Get("held"))
			require.NoError(t, again.Close())
			_, err = ref.Release(ctx)
			require.NoError(t, err)
			require.NoError(t, ref.Close())
			require.NoError(t, c.Call(ctx, "object", fixture.ModelIn{Label: "held"}, nil))
			require.EqualValues(t, 2, counts.Get("held"), "the last reference has gone, and the cached result with it")
		})
	}
}

func TestCacheKeepsWhatTasksHold(t *testing.T) {
	for name, results := range roomForOne {
		t.Run(name, func(t *testing.T) {
			ctx, _, c, counts := roomFor(t, results, endpoint.AsTask())
			info, err := c.Submit(ctx, "object", fixture.ModelIn{Label: "kept"})
			require.NoError(t, err)
			_, err = info.Wait(ctx)
			require.NoError(t, err)
			for _, label := range []string{"a", "b"} {
				require.NoError(t, c.Call(ctx, "object", fixture.ModelIn{Label: label}, nil))
			}
			proctest.Eventually(t, fixture.WaitLimit, "there is room for one, and that is taken", func() bool {
				info, err := c.ServerInfo(ctx)
				return err == nil && info.Stats.CacheEntries == 1 && info.Stats.CacheEvictions == 2
			})
			require.NoError(t, c.Call(ctx, "object", fixture.ModelIn{Label: "kept"}, nil))
			require.EqualValues(t, 1, counts.Get("kept"))
		})
	}
}

func TestObjectCacheKeyAfterEviction(t *testing.T) {
	ctx, s, c, _ := roomFor(t, endpoint.ResultOptions{}, endpoint.Managed(), endpoint.CacheKey("{label}"))
	ref, err := endpoint.CallManaged[[]byte](ctx, c, "object", fixture.ModelIn{Label: "held"})
	require.NoError(t, err)
	info, err := ref.Info(ctx)
	require.NoError(t, err)
	require.Contains(t, info.CacheKey, "held")
	there, err := c.InvalidateCall(ctx, "object", fixture.ModelIn{Label: "held"})
	require.NoError(t, err)
	require.True(t, there)
	info, err = ref.Info(ctx)
	require.NoError(t, err)
	require.Empty(t, info.CacheKey)
	before, err := s.ServerInfo(ctx)
	require.NoError(t, err)
	fresh, err := endpoint.CallManaged[[]byte](ctx, c, "object", fixture.ModelIn{Label: "held"})
	require.NoError(t, err)
	for _, r := range []*endpoint.Ref[[]byte]{ref, fresh} {
		_, err = r.Release(ctx)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	after, err := s.ServerInfo(ctx)
	require.NoError(t, err)
	require.Equal(t, before.Stats.CacheHits, after.Stats.CacheHits, "to let go of an object is no call")
	require.Zero(t, after.Stats.CacheEntries)
}

func TestCacheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		r := endpoint.NewRegistry(endpoint.Cached())
		runs := 0
		register(t, r, "count", func(context.Context, int) (int, error) { runs++; return runs, nil })
		node, err := endpoint.NewServer(endpoint.ServerOptions{
			Local: true, Registry: r, Results: endpoint.ResultOptions{TTL: time.Minute}, Tasks: endpoint.TaskOptions{TTL: time.Hour},
		})
		require.NoError(t, err)
		info, err := node.Submit(ctx, "count", 1)
		require.NoError(t, err)
		_, err = info.Wait(ctx)
		require.NoError(t, err)
		call := func() int {
			n, err := endpoint.Call[int](ctx, node, "count", 1)
			require.NoError(t, err)
			return n
		}
		time.Sleep(time.Minute - time.Nanosecond)
		require.Equal(t, 1, call())
		time.Sleep(time.Nanosecond)
		require.Equal(t, 2, call(), "too old, though a task has it")
		n := 0
		time.Sleep(time.Hour - time.Minute - time.Nanosecond)
		require.NoError(t, info.Result(ctx, &n))
		require.Equal(t, 1, n)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.ErrorIs(t, info.Result(ctx, &n), task.ErrNotFound)
		server, err := node.ServerInfo(ctx)
		require.NoError(t, err)
		require.Zero(t, server.Stats.Tasks)
		require.Zero(t, server.Stats.CacheEntries)
		require.NoError(t, node.Close())
	})
}

func TestCacheBudget(t *testing.T) {
	for name, results := range map[string]endpoint.ResultOptions{"entries": {Entries: 2}, "bytes": {Bytes: 2500}} {
		t.Run(name, func(t *testing.T) {
			ctx, s, c, counts := roomFor(t, results)
			call := func(label string) { require.NoError(t, c.Call(ctx, "object", fixture.ModelIn{Label: label}, nil)) }
			for _, label := range []string{"a", "b", "c"} {
				call(label)
			}
			proctest.Eventually(t, fixture.WaitLimit, "what does not fit goes when its answer has been sent", func() bool {
				info, err := s.ServerInfo(ctx)
				return err == nil && info.Stats.CacheEntries == 2 && info.Stats.CacheEvictions == 1
			})
			runs := func() uint64 { return counts.Get("a") + counts.Get("b") + counts.Get("c") }
			require.EqualValues(t, 3, runs())
			for _, label := range []string{"c", "b", "a"} {
				call(label)
			}
			require.Greater(t, runs(), uint64(3), "one had gone")
			require.Less(t, runs(), uint64(6), "the others had not")
		})
	}
}
