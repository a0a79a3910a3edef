package session_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// accustom makes calls of an endpoint count as short, so that the reading goroutine runs them itself.
func accustom(t *testing.T, c *endpoint.Client, name string, in any) {
	t.Helper()
	for range 300 {
		require.NoError(t, c.Call(context.Background(), name, in, nil))
	}
}

func TestCancelReachesFunction(t *testing.T) {
	for _, accustomed := range []bool{false, true} {
		drivertest.Leaks(t)
		_, c := loadOwner(t)
		if accustomed {
			accustom(t, c, "wait", true)
		}
		before := statsOf(t, c)
		ctx, cancel := context.WithCancel(context.Background())
		const n = 100
		var calls sync.WaitGroup
		for range n {
			calls.Go(func() {
				if err := c.Call(ctx, "wait", false, nil); ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		proctest.Eventually(t, fixture.WaitLimit, "the functions wait", func() bool { return statsOf(t, c).Started == n })
		cancel()
		calls.Wait()
		proctest.Eventually(t, fixture.WaitLimit, "they were told to stop", func() bool { return statsOf(t, c).Stopped == n })
		settled(t, c, before)
	}
}

func TestCallDeadlineStopsFunction(t *testing.T) {
	drivertest.Leaks(t)
	_, c := loadOwner(t)
	accustom(t, c, "wait", true)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Call(ctx, "wait", false, nil), context.DeadlineExceeded)
	proctest.Eventually(t, fixture.WaitLimit, "it was stopped", func() bool { return statsOf(t, c).Stopped == 1 })
}

// A long call of an endpoint with short calls delays others on the connection only briefly.
func TestCallInlineOverdue(t *testing.T) {
	drivertest.Leaks(t)
	_, c := loadOwner(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i := range int64(20) {
		accustom(t, c, "wait", true)
		waiting.Go(func() { c.Call(ctx, "wait", false, nil) })
		proctest.Eventually(t, fixture.WaitLimit, "it waits", func() bool { return statsOf(t, c).Started == i+1 })
		got, err := endpoint.Call[int](context.Background(), c, "next", 1)
		require.NoError(t, err)
		require.Equal(t, 2, got)
	}
	require.Zero(t, statsOf(t, c).Stopped)
}

// A function that ends its goroutine on the reading goroutine is replaced by another reader.
func TestCallGoexitKeepsConnection(t *testing.T) {
	drivertest.Leaks(t)
	_, c := loadOwner(t)
	before := statsOf(t, c)
	for range 5 {
		accustom(t, c, "leave", false)
		require.ErrorContains(t, c.Call(context.Background(), "leave", true, nil), "Goexit")
	}
	settled(t, c, before)
}

// Calls of an accustomed endpoint that arrive together with others are all answered, in any order.
func TestCallShortAndLong(t *testing.T) {
	drivertest.Leaks(t)
	_, c := loadOwner(t)
	before := statsOf(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	var waiting, calling sync.WaitGroup
	for i := range 16 {
		calling.Go(func() {
			for n := range 300 {
				if n%50 == i {
					waiting.Go(func() { c.Call(ctx, "wait", false, nil) })
				}
				if got, err := endpoint.Call[int](context.Background(), c, "next", n); err != nil || got != n+1 {
					t.Error(got, err)
					return
				}
				if err := c.Call(context.Background(), "wait", true, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	calling.Wait()
	cancel()
	waiting.Wait()
	settled(t, c, before)
}
