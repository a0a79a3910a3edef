package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// The number of runs of two equal calls, for each combination of cache options.
func TestCacheOption(t *testing.T) {
	type opts = []endpoint.Option
	for _, c := range []struct {
		name           string
		defaults, opts opts
		runs           int
	}{
		{"nothing said", nil, nil, 2},
		{"a task", nil, opts{endpoint.AsTask()}, 2},
		{"side by side", nil, opts{endpoint.NoSingleFlight()}, 2},
		{"cached", nil, opts{endpoint.Cached()}, 1},
		{"by key", nil, opts{endpoint.CacheKey("")}, 1},
		{"managed", nil, opts{endpoint.Managed()}, 1},
		{"managed, each its own", nil, opts{endpoint.Managed(), endpoint.NoCache()}, 2},
		{"cached task", nil, opts{endpoint.AsTask(), endpoint.Cached()}, 1},
		{"cached by the registry", opts{endpoint.Cached()}, nil, 1},
		{"by the registry's key", opts{endpoint.CacheKey("")}, nil, 1},
		{"task cached by the registry", opts{endpoint.Cached()}, opts{endpoint.AsTask()}, 1},
		{"not cached though the registry is", opts{endpoint.Cached()}, opts{endpoint.NoCache()}, 2},
		{"not cached though the registry has a key", opts{endpoint.CacheKey("")}, opts{endpoint.NoCache()}, 2},
		{"cached though the registry is not", opts{endpoint.NoCache()}, opts{endpoint.Cached()}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			runs := 0
			r := endpoint.NewRegistry(c.defaults...)
			require.NoError(t, endpoint.Register(r, "count", func(context.Context, int) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				runs++
				return runs, nil
			}, c.opts...))
			ctx, _, client := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
			// A managed object lives, and equal calls share it, while there is a reference.
			first, err := endpoint.CallManaged[int](ctx, client, "count", 1)
			if !errors.Is(err, endpoint.ErrInvalid) { // the result is managed
				require.NoError(t, err)
				defer first.Close()
			}
			_, err = endpoint.Call[int](ctx, client, "count", 1)
			require.NoError(t, err)
			mu.Lock()
			ran := runs
			mu.Unlock()
			require.Equal(t, c.runs, ran)
			list, err := client.Endpoints(ctx)
			require.NoError(t, err)
			require.Equal(t, c.runs == 1, list[0].Cache)
		})
	}
}

// The same call submitted twice runs twice.
func TestTaskRunsPerSubmission(t *testing.T) {
	runs := make(chan int, 8)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "count", func(_ context.Context, n int) (int, error) { runs <- n; return n, nil }, endpoint.AsTask()))
	ctx, _, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	for range 3 {
		task, err := c.Submit(ctx, "count", 1)
		require.NoError(t, err)
		_, err = task.Wait(ctx)
		require.NoError(t, err)
	}
	require.Len(t, runs, 3)
}

// The registry's cache option does not apply to streams.
func TestStreamIsNotCached(t *testing.T) {
	t.Parallel()
	r := endpoint.NewRegistry(endpoint.Cached())
	stream := func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) { yield(1, nil) }
	}
	require.NoError(t, endpoint.RegisterStream(r, "stream", stream))
	require.ErrorIs(t, endpoint.RegisterStream(r, "cached stream", stream, endpoint.Cached()), endpoint.ErrConfiguration)
	bad := endpoint.NewRegistry(endpoint.Timeout(-1))
	require.ErrorContains(t, endpoint.RegisterStream(bad, "stream", stream), "an option of the registry")
}

// One function is cached for each size, another runs for each call.
func ExampleCached() {
	runs := 0
	count := func(_ context.Context, size int) (int, error) { runs++; return size, nil }
	functions := endpoint.NewRegistry()
	if err := endpoint.Register(functions, "build", count, endpoint.Cached()); err != nil {
		fmt.Println(err)
	}
	if err := endpoint.Register(functions, "step", count); err != nil {
		fmt.Println(err)
	}
	node, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Registry: functions})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close()
	for _, name := range []string{"build", "build", "step", "step"} {
		size, err := endpoint.Call[int](context.Background(), node, name, 7)
		fmt.Println(name, size, runs, err)
	}
	// Output:
	// build 7 1 <nil>
	// build 7 1 <nil>
	// step 7 2 <nil>
	// step 7 3 <nil>
}
