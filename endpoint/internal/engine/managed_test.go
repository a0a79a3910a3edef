package engine_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestRefSharedByProcesses(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(fixture.Device(t))})
	require.NoError(t, err)
	defer c.Close()
	ids := make(chan string, 3)
	for range 2 {
		other := fixture.Client(t, socket)
		go func() {
			id, err := fixture.HoldObjectOp.Ask(other.Process, fixture.ObjectCall{Endpoint: "gated model", Key: "a", Size: 8})
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	var ref *endpoint.Ref[*tensor.Tensor]
	go func() {
		var err error
		if ref, err = endpoint.CallManaged[*tensor.Tensor](ctx, c, "gated model", fixture.ModelIn{Size: 8}); err != nil {
			t.Error(err)
			ids <- ""
			return
		}
		ids <- ref.ID()
	}()
	proctest.Eventually(t, fixture.WaitLimit, "all wait for one run", func() bool {
		info, err := c.ServerInfo(ctx)
		return err == nil && info.Stats.CacheMisses == 1 && info.Stats.CacheJoins == 2
	})
	fixture.OpenGate(t, c, "model")
	id := <-ids
	require.NotEmpty(t, id)
	for range 2 {
		require.Equal(t, id, <-ids)
	}
	defer ref.Close()
	info, err := ref.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, info.Refs)
	require.EqualValues(t, 1, info.Mine)
	require.EqualValues(t, 1, o.Ran("gated model"))
}

func TestRefCountsUnderLoad(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	first, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer first.Close()
	const callers, each = 8, 200
	refs := make(chan *endpoint.Ref[*tensor.Tensor], callers*each)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
				if err != nil {
					t.Error(err)
					return
				}
				refs <- ref
			}
		})
	}
	all.Wait()
	info, err := first.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, callers*each+1, info.Refs)
	close(refs)
	for range callers {
		all.Go(func() {
			for ref := range refs {
				if released, err := ref.Release(ctx); err != nil || !released {
					t.Error(released, err)
				}
				ref.Close()
			}
		})
	}
	all.Wait()
	info, err = first.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Refs)
	require.EqualValues(t, 1, o.Ran("model"))
}

func TestRefUncached(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	hold := func() *endpoint.Ref[*tensor.Tensor] {
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "fresh model", fixture.ModelIn{Size: 4})
		require.NoError(t, err)
		t.Cleanup(func() { ref.Close() })
		info, err := ref.Info(ctx)
		require.NoError(t, err)
		require.Empty(t, info.CacheKey)
		require.EqualValues(t, 1, info.Refs)
		return ref
	}
	a, b := hold(), hold()
	require.NotEqual(t, a.ID(), b.ID())
	for _, ref := range []*endpoint.Ref[*tensor.Tensor]{a, b} {
		released, err := ref.Release(ctx)
		require.NoError(t, err)
		require.True(t, released)
		_, err = c.ObjectInfo(ctx, ref.ID())
		require.ErrorIs(t, err, endpoint.ErrStale)
		again, err := ref.Release(ctx)
		require.NoError(t, err)
		require.False(t, again)
	}
}

func TestTaskSharesCachedObject(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	var refs []*endpoint.Ref[*tensor.Tensor]
	for range 2 {
		job, err := c.Submit(ctx, "model", fixture.ModelIn{Size: 4})
		require.NoError(t, err)
		info, err := job.Wait(ctx)
		require.NoError(t, err)
		require.NoError(t, info.Err())
		ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, c.Task(info.ID))
		require.NoError(t, err)
		defer ref.Close()
		refs = append(refs, ref)
	}
	require.Equal(t, refs[0].ID(), refs[1].ID())
	info, err := refs[1].Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, info.Refs)
	require.EqualValues(t, 1, o.Ran("model"))
	for _, ref := range refs {
		released, err := ref.Release(ctx)
		require.NoError(t, err)
		require.True(t, released)
	}
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, server.Stats.Objects)
	require.Zero(t, server.Stats.CacheEntries)
}

func TestCacheKeyOfMaps(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	for range 2 {
		other := fixture.Client(t, socket)
		for range 3 {
			require.EqualValues(t, 20, callMap(other, 20))
		}
	}
	require.EqualValues(t, 1, o.Ran("map"))
	require.EqualValues(t, 21, callMap(fixture.Client(t, socket), 21))
	require.EqualValues(t, 2, o.Ran("map"))
}
