package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Arguments share memory with the function.
func TestCallArgumentsShareMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, _ := fixture.ClientOfOwner(t)
	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer x.Close()
	require.NoError(t, c.Call(context.Background(), "fill", fixture.ScaleIn{X: x, By: 7}, nil))
	require.Equal(t, []float32{7, 7, 7, 7}, fixture.Values(t, x), "what the function wrote is here, because it is the same memory")
}

// Tensors in containers share memory too.
func TestCallContainersShareMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	got, err := endpoint.Call[map[string][]*tensor.Tensor](ctx, c, "kept", nil)
	require.NoError(t, err)
	x := got["list"][0]
	defer x.Close()
	require.Equal(t, []float32{1, 1, 1, 1}, fixture.Values(t, x))
	require.NoError(t, c.Call(ctx, "poke", float32(5), nil))
	require.Equal(t, []float32{5, 5, 5, 5}, fixture.Values(t, x), "the owner writes, the holder of the container sees it")
}

// The default cache key consists of all arguments.
func TestCacheKeyOfArguments(t *testing.T) {
	t.Parallel()
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	for _, n := range []int{2, 21, 2} {
		got, err := endpoint.Call[int](ctx, c, "double", struct{ N int }{n})
		require.NoError(t, err)
		require.Equal(t, 2*n, got)
	}
	require.EqualValues(t, 2, o.Ran("double"))

	// Equal bytes in memory that may still change are not an equal key.
	for want := range uint64(2) {
		x, err := fixture.Filled(dev, 4, 2)
		require.NoError(t, err)
		sum, err := endpoint.Call[float64](ctx, c, "sum", fixture.ScaleIn{X: x})
		require.NoError(t, err)
		require.EqualValues(t, 8, sum)
		require.Equal(t, want+1, o.Ran("sum"))
		require.NoError(t, x.Close())
	}
}

// A cached result that two processes hold cannot be written.
func TestCacheResultsAreReadOnly(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	mine, err := fixture.Filled(dev, 4, 100)
	require.NoError(t, err)
	defer mine.Close()
	for range 2 {
		got, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 4})
		require.NoError(t, err)
		defer got.Close()
		require.False(t, got.Storage().Memory().Writable())
		require.ErrorIs(t, got.CopyFrom(mine), driver.ErrReadOnly)
		_, err = got.Storage().Memory().WriteAt([]byte{1}, 0)
		require.ErrorIs(t, err, driver.ErrReadOnly)
		require.Equal(t, []float32{4, 4, 4, 4}, fixture.Values(t, got))
	}
	require.EqualValues(t, 1, o.Ran("model"))
}

// A reference from a task names its server.
func TestRefServerID(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	direct, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	defer direct.Close()
	called, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model task", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	defer called.Close()
	info, err := c.Submit(ctx, "model task", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	_, err = info.Wait(ctx)
	require.NoError(t, err)
	fetched, err := endpoint.ResultManaged[*tensor.Tensor](ctx, info)
	require.NoError(t, err)
	defer fetched.Close()
	for _, ref := range []*endpoint.Ref[*tensor.Tensor]{direct, called, fetched} {
		require.NotEmpty(t, ref.ID())
		require.Equal(t, c.ServerID(), ref.ServerID())
		live, err := ref.Info(ctx)
		require.NoError(t, err)
		require.Equal(t, c.ServerID(), live.ServerID)
		require.Len(t, fixture.Values(t, ref.Value()), 8)

		var stale *endpoint.StaleError
		_, err = c.EnsureLive(ctx, ref.ID(), "another server")
		require.ErrorAs(t, err, &stale)
		require.Equal(t, endpoint.StaleServerMismatch, stale.Reason)
	}
}

// Each fetch of a task's result has its own reference.
func TestTaskResultFetchedTwice(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	info, err := c.Submit(ctx, "model task", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	_, err = info.Wait(ctx)
	require.NoError(t, err)
	first, err := endpoint.ResultManaged[*tensor.Tensor](ctx, info)
	require.NoError(t, err)
	second, err := endpoint.ResultManaged[*tensor.Tensor](ctx, info)
	require.NoError(t, err)
	require.Equal(t, first.ID(), second.ID())
	live, err := second.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, live.Refs)

	released, err := first.Release(ctx)
	require.NoError(t, err)
	require.True(t, released)
	released, err = first.Release(ctx)
	require.NoError(t, err)
	require.False(t, released, "a reference goes back once")
	live, err = second.Info(ctx)
	require.NoError(t, err, "the other reference is as good as before")
	require.EqualValues(t, 1, live.Refs)
	require.Len(t, fixture.Values(t, first.Value()), 8, "a value outlives its reference")
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, second.Close())
}

// Releasing the last reference frees the memory, even if a task produced it.
func TestRefReleaseFreesMemory(t *testing.T) {
	t.Parallel()
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	before := o.Count()
	info, err := c.Submit(ctx, "model task", fixture.ModelIn{Size: 1 << 20})
	require.NoError(t, err)
	_, err = info.Wait(ctx)
	require.NoError(t, err)
	ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, info)
	require.NoError(t, err)
	_, err = ref.Release(ctx)
	require.NoError(t, err)
	defer ref.Close()

	after := o.Count()
	require.LessOrEqual(t, after.Mappings, before.Mappings, "the memory went with the last reference, though the task is still known")
	require.LessOrEqual(t, after.Files, before.Files)
	known, err := info.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCompleted, known.State)
	require.ErrorIs(t, info.Result(ctx, nil), endpoint.ErrStale)
}

// A result fetched by a client that was killed is released.
func TestTaskResultOfKilledClient(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	before := o.Count()
	for range 3 {
		c := fixture.Client(t, socket)
		c.Hold("fresh model", "a", 1<<20)
		c.Hold("model task", "b", 1<<20)
		c.Kill()
	}
	proctest.Eventually(t, fixture.WaitLimit, "descriptors and mappings are back", func() bool {
		now := o.Count()
		return now.Files <= before.Files && now.Mappings <= before.Mappings
	})
}

// A reference belongs to its session.
func TestRefBelongsToSession(t *testing.T) {
	drivertest.Leaks(t)
	_, socket := fixture.Owner(t)
	other := fixture.Client(t, socket)
	id := other.Hold("model", "a", 8)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer c.Close()
	ctx := context.Background()

	info, err := c.ObjectInfo(ctx, id)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Refs)
	require.EqualValues(t, 0, info.Mine)
	require.Equal(t, "model", info.Endpoint)
	require.False(t, info.LastAccessedAt.Before(info.CreatedAt))

	other.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "the dead client's reference is back, and the object with it", func() bool {
		_, err := c.EnsureLive(ctx, id, "")
		return err != nil
	})
	var stale *endpoint.StaleError
	_, err = c.EnsureLive(ctx, id, c.ServerID())
	require.ErrorAs(t, err, &stale)
	require.Equal(t, endpoint.StaleError{ObjectID: id, ServerID: c.ServerID(), Reason: endpoint.StaleObjectMissing}, *stale)
	require.ErrorIs(t, err, endpoint.ErrStale)
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Objects)
}

// A nil result of a managed endpoint is not an object, so CallManaged fails.
func TestRefOfNil(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	for range 2 {
		_, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "no model", nil)
		require.ErrorIs(t, err, endpoint.ErrInvalid)
		require.ErrorContains(t, err, `endpoint "no model": invalid argument: the result is not a managed object`)
	}
	require.EqualValues(t, 1, o.Ran("no model"), "nothing is a result like any other")
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Objects)
}

// A wrapper that embeds the client keeps references. One that only implements Calls does not compile.
func TestCallManagedThroughWrapper(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, struct{ *endpoint.Client }{c}, "model", fixture.ModelIn{Size: 1})
	require.NoError(t, err)
	require.NotEmpty(t, ref.ID())
	require.NoError(t, ref.Close())
	_, err = endpoint.CallManaged[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 1})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

// A result that cannot be encoded is not an object.
func TestRefOfUnencodable(t *testing.T) {
	t.Parallel()
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	before := o.Count()
	for n := range uint64(3) {
		_, err := endpoint.CallManaged[any](ctx, c, "managed channel", nil)
		require.ErrorContains(t, err, `endpoint "managed channel": result`)
		require.Equal(t, n+1, o.Ran("managed channel"))
	}
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Objects)
	require.Zero(t, server.Stats.CacheEntries)
	after := o.Count()
	require.LessOrEqual(t, after.Mappings, before.Mappings, "the tensor beside it was closed")
}

// Waiting for a cancelled task returns ErrCancelled.
func TestTaskWaitCancelled(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	info, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "never"})
	require.NoError(t, err)
	cancelled, err := info.Cancel(ctx)
	require.NoError(t, err)
	require.True(t, cancelled)
	end, err := info.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.TaskCancelled, end.State)
	require.ErrorIs(t, end.Err(), task.ErrCancelled)
	require.NotEmpty(t, end.Error)
	require.ErrorIs(t, info.Result(ctx, nil), task.ErrCancelled)
	cancelled, err = info.Cancel(ctx)
	require.NoError(t, err)
	require.False(t, cancelled)
}

// Nested maps are accepted.
func TestCallNestedMaps(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	got, err := endpoint.Call[map[string]any](context.Background(), c, "tree", fixture.ModelIn{Size: 3})
	require.NoError(t, err)
	list := got["a"].(map[string]any)["b"].([]any)
	x := list[0].(*tensor.Tensor)
	defer x.Close()
	require.Equal(t, []float32{1, 1, 1}, fixture.Values(t, x))
	require.Equal(t, "leaf", list[1])
	sd := got["sd"].(interface {
		Len() int
		Close() error
	})
	defer sd.Close()
	require.Equal(t, 1, sd.Len())
}
