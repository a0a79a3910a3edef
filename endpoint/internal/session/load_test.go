package session_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestClientCallsInFlight(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	_, c := loadOwner(t)
	before := statsOf(t, c)
	const n = 10_000
	for range 2 { // in the second round everything has grown
		var calls sync.WaitGroup
		for range n {
			calls.Go(func() { // no call returns before all have begun
				if got, err := endpoint.Call[int](context.Background(), c, "meet", n); err != nil || got != n {
					t.Error(got, err)
				}
			})
		}
		calls.Wait()
	}
	settled(t, c, before)
}

func TestLimitsCallsRefused(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{
		Registry: loadRegistry(new(loadCounts)), Limits: endpoint.Limits{Requests: 10}, Logger: fixture.Discard(),
	})
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	refused := make(chan error, 20)
	for range 20 {
		calls.Go(func() {
			if err := c.Call(ctx, "meet", 1000, nil); ctx.Err() == nil {
				refused <- err
			}
		})
	}
	for range 10 {
		require.ErrorIs(t, <-refused, endpoint.ErrLimit)
	}
	_, err = c.Ping(ctx)
	require.NoError(t, err, "what is short is answered all the same")
	cancel()
	calls.Wait()
	proctest.Eventually(t, fixture.WaitLimit, "there is room again", func() bool { return c.Call(context.Background(), "next", 1, nil) == nil })
}

func TestServerThousandClients(t *testing.T) {
	t.Parallel()
	o, c := loadOwner(t)
	before := statsOf(t, c)
	const clients = 1000
	const processes = 4
	var all [processes]*proctest.Process[loadHolders]
	var starting sync.WaitGroup
	for i := range all {
		starting.Go(func() { all[i] = holdLoad(t, c.Socket(), clients/processes) })
	}
	starting.Wait()
	require.False(t, t.Failed())
	models, err := c.List(context.Background())
	require.NoError(t, err)
	require.Len(t, models[0].Versions[0].Holders, clients)
	t.Logf("%d clients: the owner has %d KiB of its own memory", clients, residentBytes(t, o.PID())>>10)
	for _, p := range all {
		p.Kill()
	}
	proctest.Eventually(t, fixture.WaitLimit, "all leases are back", func() bool {
		models, err := c.List(context.Background())
		return err == nil && len(models[0].Versions[0].Holders) == 0
	})
	settled(t, c, before)
}

// Processes that hold the model are killed one after another. The owner's resources do not grow with their number.
func TestClientsKilledLeakNothing(t *testing.T) {
	o, c := loadOwner(t)
	cycle := func(n int) {
		var workers sync.WaitGroup
		turns := make(chan struct{}, n)
		for range n {
			turns <- struct{}{}
		}
		close(turns)
		for range runtime.GOMAXPROCS(0) + 1 {
			workers.Go(func() {
				for range turns {
					p := holdLoad(t, c.Socket(), 1)
					if p == nil {
						return
					}
					p.Kill()
				}
			})
		}
		workers.Wait()
	}
	cycles := fixture.Count(t, 100, 10_000)
	cycle(50) // until all one-time growth has happened
	before, memory := statsOf(t, c), residentBytes(t, o.PID())
	start := time.Now()
	cycle(cycles)
	proctest.Eventually(t, fixture.WaitLimit, "all leases are back", func() bool {
		models, err := c.List(context.Background())
		return err == nil && len(models[0].Versions[0].Holders) == 0
	})
	settled(t, c, before)
	after := statsOf(t, c)
	grown := residentBytes(t, o.PID()) - memory
	t.Logf("%d cycles in %v: heap %d KiB before and %d KiB after, RSS grew by %d KiB, descriptors %d and %d, mappings %d and %d, goroutines %d and %d",
		cycles, time.Since(start).Round(time.Millisecond), before.Heap>>10, after.Heap>>10, grown>>10,
		before.Files, after.Files, before.Maps, after.Maps, before.Goroutines, after.Goroutines)
	require.Less(t, after.Heap, before.Heap+1<<20)
	require.Less(t, grown, int64(16<<20))
}

func TestServerShutdownUnderLoad(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	counts := new(loadCounts)
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: loadRegistry(counts), Logger: fixture.Discard()})
	var load sync.WaitGroup
	for range 8 {
		c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
		require.NoError(t, err)
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for range 4 {
			load.Go(func() {
				l, stop := context.WithCancel(ctx)
				defer stop()
				for c.Call(l, "next", 1, nil) == nil {
				}
			})
			load.Go(func() { c.Call(ctx, "wait", false, nil) })
		}
	}
	proctest.Eventually(t, fixture.WaitLimit, "functions wait", func() bool { return counts.started.Load() == 32 })
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded)
	require.Less(t, time.Since(start), fixture.Promptly)
	proctest.Eventually(t, fixture.WaitLimit, "the functions were told to stop", func() bool { return counts.stopped.Load() == 32 })
}
