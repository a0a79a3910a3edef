package endpoint_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestATaskIsFollowedToItsEnd(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := calling(t)
	ctx := context.Background()
	info, err := c.Submit(ctx, "steps", gateIn{Gate: "steps", N: 5})
	require.NoError(t, err)
	require.Equal(t, "steps", info.Endpoint)
	var seq uint64
	var last endpoint.TaskInfo
	for info, err := range c.WatchTask(ctx, info.ID) {
		require.NoError(t, err)
		require.Greater(t, info.Seq, seq)
		seq, last = info.Seq, info
		if info.Done == 5 && !info.State.Terminal() {
			require.Equal(t, "step 5", info.Message)
			require.ErrorIs(t, c.Result(ctx, info.ID, nil), task.ErrNotFinished)
			open(t, c, "steps")
		}
	}
	require.Equal(t, endpoint.TaskCompleted, last.State)
	require.NoError(t, last.Err())
	require.False(t, last.FinishedAt.Before(last.StartedAt))
	var n int
	require.NoError(t, c.Result(ctx, info.ID, &n))
	require.Equal(t, 5, n)
	for _, err := range c.WatchTask(ctx, "nothing") {
		require.ErrorIs(t, err, task.ErrNotFound)
	}
	for range c.WatchTask(ctx, info.ID) {
		break // leaving is no trouble
	}
}

func TestTasksOutliveTheirClient(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := calling(t)
	ctx := context.Background()
	other := client(t, c.Socket())
	id := other.must(command{Do: "submit", Name: "model task", Bytes: 3}).ID
	other.kill()
	info, err := c.Wait(ctx, id)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCompleted, info.State)
	mine, err := c.Tasks(ctx, endpoint.TaskFilter{Mine: true})
	require.NoError(t, err)
	require.Empty(t, mine)
	ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, c, id)
	require.NoError(t, err)
	require.Equal(t, []float32{3, 3, 3}, values(t, ref.Value()))
	require.NoError(t, ref.Close())
}

func TestFailedTasksSayWhy(t *testing.T) {
	c, _, _ := calling(t)
	ctx := context.Background()
	info, err := c.Submit(ctx, "fail", nil)
	require.NoError(t, err)
	end, err := c.Wait(ctx, info.ID)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskFailed, end.State)
	require.ErrorIs(t, end.Err(), task.ErrFailed)
	require.Contains(t, end.Error, driver.ErrOutOfMemory.Error())
	require.ErrorIs(t, c.Result(ctx, info.ID, nil), task.ErrFailed)
	_, err = c.Submit(ctx, "nothing", nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	_, err = c.Submit(ctx, "count", struct{ To int }{1})
	require.ErrorIs(t, err, endpoint.ErrInvalid, "a stream is no task")
	_, err = c.Submit(ctx, "double", map[string]int{"M": 1})
	require.Error(t, err, "arguments are checked before the task is made")
}

func TestArgumentsOfPendingTasksAreFreed(t *testing.T) {
	c, dev, o := calling(t)
	ctx := context.Background()
	for i := range task.DefaultWorkers { // all workers are busy
		_, err := c.Submit(ctx, "gated task", gateIn{Gate: "busy", N: i})
		require.NoError(t, err)
	}
	eventually(t, waitLimit, "they run", func() bool { return ran(o, "gated task") == task.DefaultWorkers })
	x, err := filled(dev, 1<<16, 1)
	require.NoError(t, err)
	defer x.Close()
	before := o.must(command{Do: "count"})
	pending, err := c.Submit(ctx, "sum", scaleIn{X: x})
	require.NoError(t, err)
	require.Greater(t, o.must(command{Do: "count"}).Maps, before.Maps)
	cancelled, err := c.Cancel(ctx, pending.ID)
	require.NoError(t, err)
	require.True(t, cancelled)
	eventually(t, waitLimit, "what it would have got is unmapped", func() bool { return o.must(command{Do: "count"}).Maps <= before.Maps })
	require.Zero(t, ran(o, "sum"))
	open(t, c, "busy")
}

func TestCallsOfAFullManagerGetTheirResults(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "t", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.Task(), endpoint.NoCache()))
	s := serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 3, Retain: -1}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	for n := range 100 { // no finished task is kept, and none is missed
		got, err := endpoint.Call[int](ctx, c, "t", n)
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
}

func TestTheCapacityOfTasksIsAnError(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	gate := make(chan struct{})
	require.NoError(t, endpoint.Register(r, "t", func(_ context.Context, n int) (int, error) {
		<-gate
		return n, nil
	}, endpoint.NoCache()))
	s := serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 2, Workers: 1}})
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
		_, err := c.Wait(ctx, id)
		require.NoError(t, err)
	}
	_, err = c.Submit(ctx, "t", 4)
	require.NoError(t, err, "a finished one makes room")
	require.ErrorIs(t, c.Result(ctx, ids[0], nil), task.ErrNotFound)
}

func TestSerializedEndpointsRunOneByOne(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := calling(t)
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
