package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func TestTaskUnheardIsCancelled(t *testing.T) {
	t.Parallel()
	owner := fixture.NewFakeOwner(t)
	c, end := owner.Connected("one")
	ctx, cancel := context.WithCancel(context.Background())
	submitted := make(chan error, 1)
	go func() {
		_, err := c.Submit(ctx, "build", 1)
		submitted <- err
	}()
	id := end.NextRequest(message.OpSubmit, nil)
	cancel()
	require.ErrorIs(t, <-submitted, context.Canceled)
	require.Equal(t, wire.KindCancel, end.NextFrame().Kind)
	end.SendFrame(wire.KindResponse, id, message.TaskInfo{ID: "unheard", State: "pending"})
	var about message.Task
	end.NextRequest(message.OpTaskCancel, &about)
	require.Equal(t, "unheard", about.ID)
}

func TestTaskUnheardConcurrently(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	register(t, r, "wait", func(ctx context.Context, _ int) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}, endpoint.NoCache())
	for name, through := range map[string]endpoint.Caller{"client": c, "within the process": s} {
		for range 100 {
			short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(200))*time.Microsecond)
			info, err := through.Submit(short, "wait", 1)
			if err == nil {
				could, err := info.Cancel(ctx)
				require.NoError(t, err)
				require.True(t, could, "it is not cancelled because its submitter leaves later")
			}
			cancel()
		}
		proctest.Eventually(t, fixture.WaitLimit, "the others are cancelled too: "+name, func() bool {
			left, err := s.Tasks(ctx, endpoint.TaskFilter{States: []endpoint.TaskState{endpoint.TaskPending, endpoint.TaskRunning}})
			return err == nil && len(left) == 0
		})
	}
}

func TestTaskWaitsForItself(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, callers := bothWays(t, endpoint.ServerOptions{Registry: r})
	for of, opts := range map[string][]endpoint.Option{"cached": nil, "uncached": {endpoint.NoCache()}} {
		for name, through := range callers {
			name = of + ", " + name
			register(t, r, name, func(ctx context.Context, _ int) (bool, error) {
				id, ok := task.ID(ctx)
				if !ok {
					return false, errors.New("not a task")
				}
				_, err := through.Task(id).Wait(ctx)
				return errors.Is(err, task.ErrSelf), nil
			}, append(opts, endpoint.AsTask())...)
			ok, err := endpoint.Call[bool](ctx, through, name, 1)
			require.NoError(t, err, name)
			require.True(t, ok, name)
		}
	}
}

// Tasks that share a run wait for it, so the run cannot wait for any of them.
func TestTaskWaitsForItsWaiter(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	ids := make(chan string, 2)
	register(t, r, "run", func(ctx context.Context, _ int) (bool, error) {
		for range 2 {
			if _, err := s.Task(<-ids).Wait(ctx); !errors.Is(err, task.ErrSelf) {
				return false, err
			}
		}
		return true, nil
	})
	var known []string
	for range 2 {
		info, err := c.Submit(ctx, "run", 1)
		require.NoError(t, err)
		known = append(known, info.ID)
	}
	proctest.Eventually(t, fixture.WaitLimit, "both wait for one run", func() bool {
		info, err := s.ServerInfo(ctx)
		return err == nil && info.Stats.CacheJoins == 1
	})
	for _, id := range known {
		ids <- id
	}
	for _, id := range known {
		var ok bool
		_, err := c.Task(id).Wait(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Task(id).Result(ctx, &ok))
		require.True(t, ok)
	}
}

func TestLimitsTasks(t *testing.T) {
	r := endpoint.NewRegistry(endpoint.Cached())
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 8, Workers: 1}})
	gate := make(chan struct{})
	register(t, r, "gated", func(_ context.Context, n int) (int, error) { <-gate; return n, nil }, endpoint.NoCache(), endpoint.AsTask())
	var ids []string
	for n := range 6 { // three quarters
		info, err := c.Submit(ctx, "gated", n)
		require.NoError(t, err)
		ids = append(ids, info.ID)
	}
	_, err := c.Submit(ctx, "gated", 7)
	require.ErrorIs(t, err, task.ErrCapacity)
	require.ErrorIs(t, c.Call(ctx, "gated", 7, nil), task.ErrCapacity)

	other, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer other.Close()
	_, err = other.Submit(ctx, "gated", 8)
	require.NoError(t, err, "there is room for others")
	own, err := s.Submit(ctx, "gated", 9)
	require.NoError(t, err)
	_, err = other.Submit(ctx, "gated", 10)
	require.ErrorIs(t, err, task.ErrCapacity, "for eight in all")
	could, err := c.Task(ids[5]).Cancel(ctx)
	require.NoError(t, err)
	require.True(t, could)
	_, err = c.Submit(ctx, "gated", 11)
	require.NoError(t, err, "one that has ended makes room")
	close(gate)
	_, err = own.Wait(ctx)
	require.NoError(t, err)

	limited, err := endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Registry: r, Limits: endpoint.Limits{Tasks: 1}})
	require.NoError(t, err)
	defer limited.Close()
	for n := range 3 {
		_, err := limited.Submit(ctx, "gated", n)
		require.NoError(t, err, "the process itself is not limited")
	}
}
