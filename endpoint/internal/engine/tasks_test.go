package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestTaskLifecycle(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	job, err := c.Submit(ctx, "steps", fixture.GateIn{Gate: "steps", N: 5})
	require.NoError(t, err)
	require.Equal(t, "steps", job.Submitted.Endpoint)
	var seq uint64
	var last endpoint.TaskInfo
	for info, err := range job.Events(ctx) {
		require.NoError(t, err)
		require.Greater(t, info.Seq, seq)
		seq, last = info.Seq, info
		if info.Done == 5 && !info.State.Terminal() {
			require.Equal(t, "step 5", info.Message)
			require.ErrorIs(t, job.Result(ctx, nil), task.ErrNotFinished)
			fixture.OpenGate(t, c, "steps")
		}
	}
	require.Equal(t, endpoint.TaskCompleted, last.State)
	require.NoError(t, last.Err())
	require.False(t, last.FinishedAt.Before(last.StartedAt))
	var n int
	require.NoError(t, job.Result(ctx, &n))
	require.Equal(t, 5, n)
	for _, err := range c.Task("nothing").Events(ctx) {
		require.ErrorIs(t, err, task.ErrNotFound)
	}
	for range job.Events(ctx) {
		break // leaving is allowed
	}
}

func TestTaskOutlivesClient(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	other := fixture.Client(t, c.Socket())
	id := other.Submit("model task", 3)
	other.Kill()
	info, err := c.Task(id).Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCompleted, info.State)
	mine, err := c.Tasks(ctx, endpoint.TaskFilter{Mine: true})
	require.NoError(t, err)
	require.Empty(t, mine)
	ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, c.Task(id))
	require.NoError(t, err)
	require.Equal(t, []float32{3, 3, 3}, fixture.Values(t, ref.Value()))
	require.NoError(t, ref.Close())
}

func TestTaskFailure(t *testing.T) {
	t.Parallel()
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	info, err := c.Submit(ctx, "fail", nil)
	require.NoError(t, err)
	end, err := info.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskFailed, end.State)
	require.ErrorIs(t, end.Err(), task.ErrFailed)
	require.Contains(t, end.Error, driver.ErrOutOfMemory.Error())
	require.ErrorIs(t, info.Result(ctx, nil), task.ErrFailed)
	_, err = c.Submit(ctx, "nothing", nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	_, err = c.Submit(ctx, "count", struct{ To int }{1})
	require.ErrorIs(t, err, endpoint.ErrInvalid, "a stream is no task")
	_, err = c.Submit(ctx, "double", map[string]int{"M": 1})
	require.Error(t, err, "arguments are checked before the task is made")
}

func TestTaskPendingArgumentsFreed(t *testing.T) {
	t.Parallel()
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	for i := range task.DefaultWorkers { // all workers are busy
		_, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "busy", N: i})
		require.NoError(t, err)
	}
	proctest.Eventually(t, fixture.WaitLimit, "they run", func() bool { return o.Ran("gated task") == task.DefaultWorkers })
	x, err := fixture.Filled(dev, 1<<16, 1)
	require.NoError(t, err)
	defer x.Close()
	before := o.Count()
	pending, err := c.Submit(ctx, "sum", fixture.ScaleIn{X: x})
	require.NoError(t, err)
	held := func(c proctest.Counts) int { return c.Mappings + c.Files } // a GPU's memory is no mapping of the host
	require.Greater(t, held(o.Count()), held(before))
	cancelled, err := pending.Cancel(ctx)
	require.NoError(t, err)
	require.True(t, cancelled)
	proctest.Eventually(t, fixture.WaitLimit, "what it would have got is unmapped", func() bool { return held(o.Count()) <= held(before) })
	require.Zero(t, o.Ran("sum"))
	fixture.OpenGate(t, c, "busy")
}

func TestTaskCallWithFullManager(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry(endpoint.Cached())
	require.NoError(t, endpoint.Register(r, "t", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.AsTask(), endpoint.NoCache()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 3, Retain: -1}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	for n := range 100 { // finished tasks are not kept, and none is missed
		got, err := endpoint.Call[int](ctx, c, "t", n)
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
}

func TestTaskCapacity(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry(endpoint.Cached())
	gate := make(chan struct{})
	require.NoError(t, endpoint.Register(r, "t", func(_ context.Context, n int) (int, error) {
		<-gate
		return n, nil
	}, endpoint.NoCache()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 2, Workers: 1}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	var ids []string
	for n := range 2 {
		info, err := c.Submit(ctx, "t", n)
		require.NoError(t, err)
		ids = append(ids, info.ID)
	}
	_, err = c.Submit(ctx, "t", 3)
	require.ErrorIs(t, err, task.ErrCapacity)
	close(gate)
	for _, id := range ids {
		_, err := c.Task(id).Wait(ctx)
		require.NoError(t, err)
	}
	_, err = c.Submit(ctx, "t", 4)
	require.NoError(t, err, "a finished one makes room")
	require.ErrorIs(t, c.Task(ids[0]).Result(ctx, nil), task.ErrNotFound)
}

func TestSerialized(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	type in struct {
		Key string `json:"key"`
		N   int    `json:"n"`
	}
	for name, most := range map[string]int{"one by one": 1, "one by key": 2} {
		results := make(chan int, 40)
		for n := range cap(results) {
			go func() {
				got, err := endpoint.Call[int](context.Background(), c, name, in{Key: []string{"a", "b"}[n%2], N: n})
				if err != nil {
					t.Error(err)
				}
				results <- got
			}()
		}
		for range cap(results) {
			require.LessOrEqual(t, <-results, most, name)
		}
	}
}

// bothWays returns a client and the server itself.
func bothWays(t *testing.T, opts endpoint.ServerOptions) (context.Context, map[string]endpoint.Caller) {
	ctx, s, c := fixture.ServerAndClient(t, opts)
	return ctx, map[string]endpoint.Caller{"client": c, "within the process": s}
}

func TestTaskReturnsNothing(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, callers := bothWays(t, endpoint.ServerOptions{Registry: r})
	register(t, r, "nothing", func(context.Context, struct{}) (*int, error) { return nil, nil }, endpoint.NoCache())
	register(t, r, "no object", func(context.Context, struct{}) (*int, error) { return nil, nil }, endpoint.NoCache(), endpoint.Managed())
	for name, through := range callers {
		for _, of := range []string{"nothing", "no object"} {
			job, err := through.Submit(ctx, of, nil)
			require.NoError(t, err, name)
			info, err := job.Wait(ctx)
			require.NoError(t, err, name)
			require.Equal(t, endpoint.TaskCompleted, info.State)
			require.NoError(t, info.Err())
			out := new(int)
			require.NoError(t, through.Task(info.ID).Result(ctx, &out), name)
			require.Nil(t, out, name)
			require.NoError(t, through.Task(info.ID).Result(ctx, nil), name)
			_, err = endpoint.ResultManaged[*int](ctx, job)
			require.ErrorIs(t, err, endpoint.ErrInvalid, name)
		}
	}
}

func TestTaskWaitLeavesTask(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, callers := bothWays(t, endpoint.ServerOptions{Registry: r})
	gate := make(chan struct{})
	register(t, r, "gated", func(ctx context.Context, n int) (int, error) {
		select {
		case <-gate:
			return n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}, endpoint.NoCache())
	for name, through := range callers {
		job, err := through.Submit(ctx, "gated", 3)
		require.NoError(t, err, name)
		defer func() { // after all have waited
			end, err := job.Wait(ctx)
			require.NoError(t, err, name)
			require.NoError(t, end.Err(), name)
		}()
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		_, err = job.Wait(short)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		info, err := job.Info(ctx)
		require.NoError(t, err, name)
		require.Equal(t, endpoint.TaskRunning, info.State, name)
	}
	close(gate)
}

func TestSerializedByKey(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, callers := bothWays(t, endpoint.ServerOptions{Registry: r})
	var meet sync.WaitGroup
	meet.Add(2)
	var running [2]atomic.Int32
	register(t, r, "by key", func(_ context.Context, in fixture.ModelIn) (int32, error) {
		if running[in.Size].Add(1) == 1 && in.Label == "first" {
			meet.Done()
			meet.Wait() // returns only if both run at once
		}
		defer running[in.Size].Add(-1)
		return running[in.Size].Load(), nil
	}, endpoint.NoCache(), endpoint.SerializedBy("{size}"))
	results := make(chan int32, 16)
	for i := range cap(results) {
		in := fixture.ModelIn{Size: i % 2}
		if i < 2 {
			in.Label = "first"
		}
		for _, through := range callers { // one of the two, at random
			go func() {
				n, err := endpoint.Call[int32](ctx, through, "by key", in)
				if err != nil {
					t.Error(err)
				}
				results <- n
			}()
			break
		}
	}
	for range cap(results) {
		require.EqualValues(t, 1, <-results, "one at a time of each")
	}
}
