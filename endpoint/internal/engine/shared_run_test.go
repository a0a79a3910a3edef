package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
)

// register adds an endpoint to a server created by shared.
func register[In, Out any](t *testing.T, r *endpoint.Registry, name string, fn func(context.Context, In) (Out, error), opts ...endpoint.Option) {
	t.Helper()
	require.NoError(t, endpoint.Register(r, name, fn, opts...))
}

// A task that waits for another task yields its worker.
func TestTaskYieldsWorkerWhileWaiting(t *testing.T) {
	for name, opts := range map[string][]endpoint.Option{
		"single flight": {endpoint.AsTask()},
		"serialized":    {endpoint.AsTask(), endpoint.NoCache(), endpoint.Serialized()},
	} {
		for _, workers := range []int{1, 2} {
			for _, inProcess := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d workers, in process %v", name, workers, inProcess), func(t *testing.T) {
					r := endpoint.NewRegistry(endpoint.Cached())
					ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Workers: workers}})
					through := endpoint.Caller(c)
					if inProcess {
						through = s
					}
					begin := make(chan struct{})
					register(t, r, "inner", func(_ context.Context, n int) (int, error) { return n + 1, nil }, endpoint.AsTask(), endpoint.NoCache())
					register(t, r, "outer", func(ctx context.Context, in fixture.ModelIn) (int, error) {
						<-begin
						return endpoint.Call[int](ctx, through, "inner", in.Size)
					}, opts...)

					var ids []string
					for range 2 { // processes
						other := fixture.Client(t, s.Socket())
						for range 2 {
							ids = append(ids, other.Submit("outer", 3))
						}
					}
					close(begin)
					n, err := endpoint.Call[int](ctx, through, "outer", fixture.ModelIn{Size: 3})
					require.NoError(t, err)
					require.Equal(t, 4, n)
					for _, id := range ids {
						info, err := c.Task(id).Wait(ctx)
						require.NoError(t, err)
						require.NoError(t, info.Err())
						require.NoError(t, c.Task(id).Result(ctx, &n))
						require.Equal(t, 4, n)
					}
				})
			}
		}
	}
}

func TestTaskSharedProgress(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Workers: 1}})
	step := make(chan int64)
	register(t, r, "nested", func(context.Context, struct{}) (int, error) { return 5, nil }, endpoint.AsTask(), endpoint.NoCache())
	register(t, r, "build", func(ctx context.Context, in fixture.ModelIn) (int, error) {
		for n := range step {
			if _, err := endpoint.Call[int](ctx, s, "nested", nil); err != nil { // takes the one worker, and gets it back
				return 0, err
			}
			task.Report(ctx, n, 3, "at work")
		}
		return in.Size, nil
	}, endpoint.AsTask())
	other := fixture.Client(t, s.Socket())
	submit := func() string {
		return other.Submit("build", 3)
	}
	shows := func(id string, done int64) {
		t.Helper()
		proctest.Eventually(t, fixture.WaitLimit, "it shows the progress of the run", func() bool {
			info, err := c.Task(id).Info(ctx)
			require.NoError(t, err)
			require.Equal(t, endpoint.TaskRunning, info.State)
			return info.Done == done && info.Total == 3
		})
	}
	joined := func(n uint64) {
		proctest.Eventually(t, fixture.WaitLimit, "it has joined", func() bool {
			info, err := s.ServerInfo(ctx)
			return err == nil && info.Stats.CacheJoins == n
		})
	}
	first, second := submit(), submit()
	step <- 1
	joined(1)
	shows(first, 1)
	shows(second, 1)

	cancelled, err := c.Task(first).Cancel(ctx)
	require.NoError(t, err)
	require.True(t, cancelled)
	end, err := c.Task(first).Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCancelled, end.State)
	step <- 2
	shows(second, 2)
	third := submit()
	step <- 3
	joined(2)
	shows(third, 3)
	shows(second, 3)
	close(step)
	for _, id := range []string{second, third} {
		info, err := c.Task(id).Wait(ctx)
		require.NoError(t, err)
		require.NoError(t, info.Err())
		n := 0
		require.NoError(t, c.Task(id).Result(ctx, &n))
		require.Equal(t, 3, n)
	}
}

func TestSerializedFindsCachedResult(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	gate, counts := make(chan struct{}), new(fixture.Counters)
	register(t, r, "model", func(_ context.Context, in fixture.ModelIn) (int, error) {
		counts.Add("model")
		<-gate
		return in.Size, nil
	}, endpoint.NoSingleFlight(), endpoint.Serialized())
	const callers = 4
	results := make(chan int, callers)
	for range callers {
		go func() {
			n, err := endpoint.Call[int](ctx, c, "model", fixture.ModelIn{Size: 5})
			if err != nil {
				t.Error(err)
			}
			results <- n
		}()
	}
	proctest.Eventually(t, fixture.WaitLimit, "all have come", func() bool {
		info, err := s.ServerInfo(ctx)
		return err == nil && slices.ContainsFunc(info.Sessions, func(s endpoint.SessionInfo) bool { return s.Requests == callers })
	})
	close(gate)
	for range callers {
		require.Equal(t, 5, <-results)
	}
	require.EqualValues(t, 1, counts.Get("model"))
	require.NoError(t, c.Call(ctx, "model", fixture.ModelIn{Size: 6}, nil))
	require.EqualValues(t, 2, counts.Get("model"), "the turn is free again")
}

func TestCacheNoSingleFlight(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	var meet sync.WaitGroup
	meet.Add(2)
	counts := new(fixture.Counters)
	register(t, r, "model", func(_ context.Context, in fixture.ModelIn) (uint64, error) {
		n := counts.Add("model")
		if n <= 2 {
			meet.Done()
			meet.Wait() // returns only if both run at once
		}
		return n, nil
	}, endpoint.NoSingleFlight())
	results := make(chan uint64, 2)
	for _, through := range []endpoint.Caller{c, s} {
		go func() {
			n, err := endpoint.Call[uint64](ctx, through, "model", fixture.ModelIn{Size: 5})
			if err != nil {
				t.Error(err)
			}
			results <- n
		}()
	}
	require.ElementsMatch(t, []uint64{1, 2}, []uint64{<-results, <-results}, "each gets what its own run made")
	kept, err := endpoint.Call[uint64](ctx, c, "model", fixture.ModelIn{Size: 5})
	require.NoError(t, err)
	require.LessOrEqual(t, kept, uint64(2), "the one that was made last is cached")
	require.EqualValues(t, 2, counts.Get("model"))
}

func TestCacheRecursion(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, _ := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	register(t, r, "again", func(ctx context.Context, n int) (int, error) { return endpoint.Call[int](ctx, s, "again", n) })
	require.ErrorIs(t, s.Call(ctx, "again", 1, nil), task.ErrSelf)
	job, err := s.Submit(ctx, "again", 2)
	require.NoError(t, err)
	info, err := job.Wait(ctx)
	require.NoError(t, err)
	require.ErrorContains(t, info.Err(), task.ErrSelf.Error())
}

// Tasks of all kinds call each other, and some callers leave. All tasks end, and every worker is free.
func TestTaskKindsConcurrently(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Workers: 2}})
	kinds := [][]endpoint.Option{
		{endpoint.AsTask()},
		{endpoint.AsTask(), endpoint.NoCache(), endpoint.SerializedBy("{size}")},
		{endpoint.AsTask(), endpoint.NoSingleFlight(), endpoint.Serialized()},
		nil,
		{endpoint.Managed(), endpoint.AsTask()},
		{endpoint.NoCache(), endpoint.AsTask()},
	}
	callers := []endpoint.Caller{s, c}
	for level, opts := range kinds {
		register(t, r, fmt.Sprint("level ", level), func(ctx context.Context, in fixture.ModelIn) (int, error) {
			task.Report(ctx, int64(level), int64(len(kinds)), "at work")
			sum := 1
			for next := level + 1; next < len(kinds); next++ {
				n, err := endpoint.Call[int](ctx, callers[(in.Size+next)%2], fmt.Sprint("level ", next), in)
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, ctx.Err()
		}, opts...)
	}
	var all sync.WaitGroup
	for seed := range uint64(8) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 13))
			for range 15 {
				in := fixture.ModelIn{Size: rng.IntN(3), Label: fmt.Sprint(rng.IntN(3))}
				through, level := callers[rng.IntN(2)], rng.IntN(len(kinds))
				short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
				_ = through.Call(short, fmt.Sprint("level ", level), in, nil)
				cancel()
				if rng.IntN(4) == 0 {
					_, _ = through.InvalidateEndpoint(ctx, fmt.Sprint("level ", rng.IntN(len(kinds))))
				}
				n, err := endpoint.Call[int](ctx, through, fmt.Sprint("level ", level), in)
				if err != nil {
					t.Error(err)
					return
				}
				if want := 1 << (len(kinds) - 1 - level); n != want {
					t.Errorf("level %d: %d, not %d", level, n, want)
				}
			}
		})
	}
	all.Wait()
	proctest.Eventually(t, fixture.WaitLimit, "nothing runs any more", func() bool {
		info, err := s.ServerInfo(ctx)
		return err == nil && info.Stats.TasksRunning == 0 && info.Stats.Inflight == 0 && info.Stats.Objects == 0
	})
}
