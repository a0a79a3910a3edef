package session_test

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// requireRings skips a test if this process has no rings.
func requireRings(t testing.TB) {
	t.Helper()
	fixture.HostOnly(t, "the device makes no difference to it")
	fixture.RequireFeature(t, message.FeatureRing)
	drivertest.Needs(t, "rings", os.Getenv("SHARED_TENSOR_RING") != "off", "SHARED_TENSOR_RING is off")
	drivertest.Needs(t, "processors", min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) > 1, "with one processor there are no rings")
}

// ringsOf returns the number of rings that a process has mapped, counting both sides.
func ringsOf(t testing.TB, pid int) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	require.NoError(t, err)
	return bytes.Count(maps, []byte("sharedtensor-ring"))
}

// dialled returns a client that uses the socket although the server is in its process.
func dialled(t testing.TB, s *endpoint.Server, opts endpoint.ClientOptions) *endpoint.Client {
	t.Helper()
	opts.Socket, opts.Devices, opts.OverSocket = s.Socket(), []driver.Device{fixture.Device(t)}, true
	c, err := endpoint.Dial(context.Background(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// With more clients than rings, the others use the socket, and a client that leaves frees its ring.
func TestRingLimit(t *testing.T) {
	requireRings(t)
	drivertest.Leaks(t)
	const each = 4096 + 2*32<<10
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "next", func(_ context.Context, n int) (int, error) { return n + 1, nil }))
	// One client may use at most twice the amount that remains free.
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Limits: endpoint.Limits{RingBytesTotal: 3 * each}})
	use := fixture.LimitUse(t, s, "ring_bytes")
	require.Equal(t, endpoint.LimitUse{Name: "ring_bytes", Client: each, All: 3 * each}, use)
	var clients []*endpoint.Client
	for range 4 {
		clients = append(clients, dialled(t, s, endpoint.ClientOptions{}))
	}
	call := func() {
		var all sync.WaitGroup
		for _, c := range clients {
			all.Go(func() {
				for n := range 200 {
					if got, err := endpoint.Call[int](context.Background(), c, "next", n); err != nil || got != n+1 {
						t.Error(got, err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	call()
	use = fixture.LimitUse(t, s, "ring_bytes")
	require.EqualValues(t, 2*each, use.Used)
	require.EqualValues(t, each, use.Most)
	require.NotZero(t, use.Refused)
	require.Equal(t, 4, ringsOf(t, os.Getpid()), "two, of both sides")

	for _, c := range clients {
		require.NoError(t, c.Close())
	}
	proctest.Eventually(t, fixture.WaitLimit, "the rings are given back", func() bool {
		return fixture.LimitUse(t, s, "ring_bytes").Used == 0 && ringsOf(t, os.Getpid()) == 0
	})
	clients = []*endpoint.Client{dialled(t, s, endpoint.ClientOptions{})}
	call()
	require.EqualValues(t, each, fixture.LimitUse(t, s, "ring_bytes").Used)
}

// Either side may disable rings.
func TestRingOption(t *testing.T) {
	requireRings(t)
	none := wire.Limits{Ring: -1}
	for name, sides := range map[string]struct {
		server, client wire.Limits
		rings          int
	}{
		"both": {rings: 2}, "not the server": {server: none}, "not the client": {client: none}, "neither": {server: none, client: none},
		"a larger one": {server: wire.Limits{Ring: 100 << 10}, rings: 2},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			s := fixture.Serve(t, endpoint.ServerOptions{Limits: endpoint.Limits{Wire: sides.server}})
			c := dialled(t, s, endpoint.ClientOptions{Limits: sides.client})
			keepCalling(t, c)
			require.Equal(t, sides.rings, ringsOf(t, os.Getpid()))
			require.NoError(t, c.Close())
			proctest.Eventually(t, fixture.WaitLimit, "nothing is left", func() bool { return ringsOf(t, os.Getpid()) == 0 })
		})
	}
}

// A client with a ring is killed, and an owner with one.
func TestRingOfKilledClient(t *testing.T) {
	requireRings(t)
	drivertest.Leaks(t)
	o, c := loadOwner(t)
	require.Equal(t, 1, ringsOf(t, int(o.PID())))
	require.Equal(t, 1, ringsOf(t, os.Getpid()))
	calls := make(chan error)
	go func() {
		for {
			if _, err := endpoint.Call[int](context.Background(), c, "next", 1); err != nil {
				calls <- err
				return
			}
		}
	}()
	o.Kill()
	require.ErrorIs(t, <-calls, endpoint.ErrUnavailable)
	proctest.Eventually(t, fixture.WaitLimit, "the ring is unmapped", func() bool { return ringsOf(t, os.Getpid()) == 0 })
}
