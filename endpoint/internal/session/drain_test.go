package session_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// An owner shuts down while a task runs and a call waits for it.
func TestServerShutdownDrains(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	gate := make(chan struct{})
	var began atomic.Int64
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "gated", func(ctx context.Context, n int) (int, error) {
		began.Add(1)
		select {
		case <-gate:
			return n + 1, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}, endpoint.AsTask()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard()})
	ctx, cancel := context.WithTimeout(context.Background(), 2*fixture.WaitLimit)
	defer cancel()
	dial := func() *endpoint.Client {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	waiting, idle := dial(), dial()
	task, err := waiting.Submit(ctx, "gated", 1)
	require.NoError(t, err)
	type end struct {
		info endpoint.TaskInfo
		n    int
		err  error
	}
	waited, called, ended := make(chan end, 1), make(chan end, 1), make(chan error, 1)
	go func() {
		info, err := task.Wait(ctx)
		waited <- end{info: info, err: err}
	}()
	go func() {
		n, err := endpoint.Call[int](ctx, waiting, "gated", 7)
		called <- end{n: n, err: err}
	}()
	proctest.Eventually(t, fixture.WaitLimit, "both run", func() bool { return began.Load() == 2 })
	go func() { ended <- s.Shutdown(ctx) }()

	refuses := func(c endpoint.Caller) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // until then a client looks for another owner
			defer cancel()
			_, submitted := c.Submit(ctx, "gated", 1)
			called := c.Call(ctx, "gated", 2, nil)
			for _, err := range []error{submitted, called} { // they may have arrived before
				require.True(t, err == nil || errors.Is(err, endpoint.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded), "%v", err)
			}
			return errors.Is(submitted, endpoint.ErrUnavailable) && errors.Is(called, endpoint.ErrUnavailable)
		}
	}
	proctest.Eventually(t, fixture.WaitLimit, "the owner takes nothing of its own process", refuses(s))
	proctest.Eventually(t, fixture.WaitLimit, "nor of a client that waits", refuses(waiting))
	proctest.Eventually(t, fixture.WaitLimit, "nor of one that is idle", refuses(idle))
	select {
	case err := <-ended:
		require.Fail(t, "it did not wait for what runs", "%v", err)
	default:
	}

	close(gate)
	require.NoError(t, <-ended)
	got := <-called
	require.NoError(t, got.err)
	require.Equal(t, 8, got.n)
	if got := <-waited; got.err == nil { // the request may have arrived after the owner stopped accepting
		require.EqualValues(t, "completed", got.info.State)
	} else {
		require.ErrorIs(t, got.err, endpoint.ErrUnavailable)
	}
}
