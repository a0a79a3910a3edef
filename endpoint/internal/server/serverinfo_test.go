package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// countsOf returns the owner's counts for an endpoint.
func countsOf(t testing.TB, info endpoint.ServerInfo, name string) endpoint.EndpointStats {
	t.Helper()
	for _, e := range info.Endpoints {
		if e.Name == name {
			return e
		}
	}
	require.Fail(t, "no endpoint", name)
	return endpoint.EndpointStats{}
}

// A known sequence of requests results in known counts.
func TestServerInfoCounters(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	before := time.Now()
	c, o := fixture.ClientOfOwnerWith(t, fixture.Service{Label: "an owner"})
	id := o.Publish(fixture.Model{Name: "m"})
	require.EqualValues(t, 1, id)

	held, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{}) // 1
	require.NoError(t, err)
	defer held.Close()
	again, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{}) // 2
	require.NoError(t, err)
	defer again.Close()
	manifest, err := c.Manifest(ctx, "m", 1) // 3
	require.NoError(t, err)
	var model uint64
	for _, s := range manifest.Storages {
		model += uint64(s.Bytes)
	}

	one, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4}) // 4: runs
	require.NoError(t, err)
	defer one.Close()
	two, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4}) // 5: is found
	require.NoError(t, err)
	defer two.Close()
	fresh, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "fresh model", fixture.ModelIn{Size: 8}) // 6: runs, is not cached
	require.NoError(t, err)
	defer fresh.Close()
	for range 3 {
		got, err := endpoint.Call[*tensor.Tensor](ctx, c, "plain model", fixture.ModelIn{Size: 16}) // 7, 8, 9: runs, is found twice
		require.NoError(t, err)
		require.NoError(t, got.Close())
	}
	require.Error(t, c.Call(ctx, "channel", fixture.ModelIn{}, nil))                      // 10: has a result that cannot cross
	require.Error(t, c.Call(ctx, "channel", map[string]int{"no such": 1}, nil))           // 11: does not run
	require.ErrorIs(t, c.Call(ctx, "no such endpoint", nil, nil), endpoint.ErrNoEndpoint) // 12
	_, err = endpoint.Call[int](ctx, c, "double", struct{ N int }{21})                    // 13: runs
	require.NoError(t, err)
	dropped, err := c.InvalidateEndpoint(ctx, "double") // 14
	require.NoError(t, err)
	require.Equal(t, 1, dropped)

	done, err := c.Submit(ctx, "kept", fixture.ModelIn{}) // 15
	require.NoError(t, err)
	_, err = done.Wait(ctx) // 16
	require.NoError(t, err)
	job, err := c.Submit(ctx, "exit", fixture.ModelIn{}) // 17
	require.NoError(t, err)
	failing, err := job.Wait(ctx) // 18
	require.NoError(t, err)
	require.ErrorIs(t, failing.Err(), task.ErrFailed)
	running, err := c.Submit(ctx, "gated run", fixture.GateIn{Gate: "last"}) // 19
	require.NoError(t, err)
	job, err = c.Submit(ctx, "gated run", fixture.GateIn{Gate: "never"}) // 20
	require.NoError(t, err)
	could, err := job.Cancel(ctx) // 21
	require.NoError(t, err)
	require.True(t, could)
	stopped, err := job.Wait(ctx) // 22
	require.NoError(t, err)
	require.ErrorIs(t, stopped.Err(), task.ErrCancelled)
	proctest.Eventually(t, fixture.WaitLimit, "the other task runs", func() bool { return o.Ran("gated run") >= 1 })

	info, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	dev := fixture.Device(t).Info()

	require.Equal(t, "SharedTensorServer", info.Kind)
	require.Equal(t, c.ServerID(), info.ID)
	require.Equal(t, endpoint.Version(), info.Version)
	require.Equal(t, "an owner", info.Label)
	require.Equal(t, c.Socket(), info.Socket)
	require.Equal(t, -1, info.DeviceIndex, "the name of the socket has none")
	require.Equal(t, o.PID(), info.PID)
	require.EqualValues(t, os.Getpid(), info.ParentPID)
	require.WithinRange(t, info.StartedAt, before, time.Now())
	require.Positive(t, info.Uptime)
	require.LessOrEqual(t, info.Uptime, time.Since(before))
	require.True(t, info.Running)
	require.True(t, info.Ready)
	require.Equal(t, []endpoint.DeviceInfo{{UUID: dev.UUID.String(), Type: dev.Type.String(), Index: dev.Index, Name: dev.Name}}, info.Devices)
	require.Equal(t, "same-host-unix-handles", info.Capabilities.Transport)
	require.NotEmpty(t, info.Capabilities.Handles)
	for _, h := range info.Capabilities.Handles {
		require.Equal(t, dev.UUID.String(), h.Device)
		require.NotEmpty(t, h.Kind)
		require.Equal(t, h.Supported, h.Reason == "")
	}
	require.True(t, info.Capabilities.Handles[0].Supported)

	s := info.Stats
	require.Positive(t, s.CacheBytes)
	cacheBytes := s.CacheBytes
	const requests = 22 + 1 + 1 // including the watch of objects, and this request
	require.Equal(t, endpoint.ServerStats{
		Requests: requests, Errors: 3,
		CacheHits: 3, CacheMisses: 5, CacheInvalidations: 1, CacheFailures: 2, CacheEntries: 2, CacheBytes: cacheBytes,
		Objects: 2, CachedObjects: 1,
		TaskSubmissions: 4, Tasks: 4, TasksRunning: 1, TasksCompleted: 1, TasksFailed: 1, TasksCancelled: 1,
		Models: 1, Versions: 1, Leases: 2, Watchers: 2,
		BytesOwned: model + 16 + 32 + 64 + 16, BytesMapped: model + 16 + 32, Clients: 1,
	}, s)
	use := func(use endpoint.MemoryUsage, bytes, storages uint64) endpoint.MemoryUse {
		return endpoint.MemoryUse{Device: dev.UUID.String(), Type: dev.Type.String(), Use: use, Bytes: bytes, Storages: storages}
	}
	require.Equal(t, []endpoint.MemoryUse{
		use(endpoint.MemoryModels, model, uint64(len(manifest.Storages))), use(endpoint.MemoryObjects, 48, 2), use(endpoint.MemoryResults, 64, 1),
		use(endpoint.MemoryTasks, 16, 1),
	}, info.Memory, "the object that is cached counts once")

	for _, row := range []endpoint.EndpointStats{
		{Name: "model", Calls: 2, CacheHits: 1, Runs: 1},
		{Name: "fresh model", Calls: 1, Runs: 1},
		{Name: "plain model", Calls: 3, CacheHits: 2, Runs: 1},
		{Name: "channel", Calls: 2, Failures: 2, Runs: 1, Errors: 1},
		{Name: "double", Calls: 1, Runs: 1},
		{Name: "kept", Calls: 1, Runs: 1},
		{Name: "number"},
	} {
		got := countsOf(t, info, row.Name)
		require.Equal(t, row.Runs > 0, got.Total > 0, row.Name)
		require.LessOrEqual(t, got.P50, got.P90, row.Name)
		require.LessOrEqual(t, got.P90, got.P99, row.Name)
		require.LessOrEqual(t, got.Total, time.Duration(row.Runs)*got.P99, row.Name)
		runs := uint64(0)
		for _, n := range got.Durations {
			runs += n
		}
		require.Equal(t, row.Runs, runs, row.Name)
		got.P50, got.P90, got.P99, got.Total, got.Durations = 0, 0, 0, 0, nil
		require.Equal(t, row, got)
	}
	proctest.Eventually(t, fixture.WaitLimit, "failed and cancelled tasks are failures", func() bool {
		info, err := c.ServerInfo(ctx)
		require.NoError(t, err)
		return countsOf(t, info, "exit").Failures == 1 && countsOf(t, info, "gated run").Failures == 1
	})

	require.Len(t, info.Sessions, 2)
	own, client := info.Sessions[0], info.Sessions[1]
	require.Equal(t, endpoint.SessionInfo{
		Process: endpoint.Process{PID: o.PID(), UID: uint32(os.Getuid()), Label: "an owner"}, Session: own.Session, Self: true, Since: own.Since,
		References: []endpoint.Reference{},
	}, own)
	require.WithinDuration(t, info.StartedAt, own.Since, fixture.Promptly)
	require.Less(t, own.Session, client.Session)
	require.WithinRange(t, client.Since, info.StartedAt, time.Now())
	require.Equal(t, endpoint.SessionInfo{
		Process: endpoint.Process{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), Label: filepath.Base(os.Args[0])}, Session: client.Session,
		Since: client.Since, Leases: 2, Objects: 3, Bytes: model + 16 + 32, References: client.References, Requests: client.Requests,
	}, client)
	require.Len(t, client.References, 2)
	require.Equal(t, fresh.ID(), client.References[0].ID, "the largest is first")
	require.Equal(t, endpoint.Reference{ID: one.ID(), Endpoint: "model", Refs: 2, Bytes: client.References[1].Bytes}, client.References[1])
	require.Greater(t, client.References[1].Bytes, uint64(16), "with its encoding")
	fixture.OpenGate(t, c, "last")
	_, err = running.Wait(ctx)
	require.NoError(t, err)
}

// Current values while gates hold functions.
func TestServerInfoGauges(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	c, dev, o := fixture.ClientOfOwner(t)
	info := func() endpoint.ServerInfo {
		t.Helper()
		info, err := c.ServerInfo(ctx)
		require.NoError(t, err)
		return info
	}
	results := make(chan error, 3)
	for range 3 { // one runs, two wait for it
		go func() { results <- c.Call(ctx, "gated", fixture.GateIn{Gate: "calls"}, nil) }()
	}
	proctest.Eventually(t, fixture.WaitLimit, "all have come", func() bool {
		s := info().Stats
		return s.CacheMisses+s.CacheJoins == 3 && o.Ran("gated") == 1
	})
	const workers = 4
	for range workers + 2 { // one for each worker runs, the others wait
		_, err := c.Submit(ctx, "gated task", fixture.GateIn{Gate: "tasks"})
		require.NoError(t, err)
	}
	proctest.Eventually(t, fixture.WaitLimit, "all but the calls are answered", func() bool { return info().Sessions[1].Requests == 3 })
	now := info()
	require.EqualValues(t, 1, now.Stats.Inflight)
	require.EqualValues(t, 2, now.Stats.CacheJoins)
	require.EqualValues(t, workers, now.Stats.TasksRunning)
	require.EqualValues(t, 2, now.Stats.TasksPending)
	require.EqualValues(t, workers+2, now.Stats.Tasks)
	require.Equal(t, endpoint.EndpointStats{Name: "gated", Calls: 3}, countsOf(t, now, "gated"), "no run has ended")
	fixture.OpenGate(t, c, "calls")
	for range 3 {
		require.NoError(t, <-results)
	}
	proctest.Eventually(t, fixture.WaitLimit, "no request is in flight", func() bool { return info().Sessions[1].Requests == 0 })
	now = info()
	require.Zero(t, now.Stats.Inflight)
	got := countsOf(t, now, "gated")
	require.EqualValues(t, []uint64{3, 2, 1}, []uint64{got.Calls, got.CacheHits, got.Runs})
	fixture.OpenGate(t, c, "tasks")
	proctest.Eventually(t, fixture.WaitLimit, "the tasks end", func() bool { return info().Stats.TasksCompleted == workers+2 })

	x, err := fixture.Filled(dev, 4, 1)
	require.NoError(t, err)
	defer x.Close()
	require.NoError(t, c.Call(ctx, "sum", fixture.ScaleIn{X: x}, nil))
	require.EqualValues(t, 1, countsOf(t, info(), "sum").Uncached, "who has the tensor may write it")
}

// Memory with several holders counts once, even if one of them mapped it again.
func TestServerInfoMemory(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	dev := fixture.Device(t)
	r := endpoint.NewRegistry(endpoint.Cached())
	require.NoError(t, endpoint.Register(r, "same", func(_ context.Context, in fixture.ScaleIn) (*tensor.Tensor, error) { return in.X.Alias(), nil },
		endpoint.CacheKey("same:{by}"), endpoint.Managed()))
	socket := proctest.SocketPath(t)
	node, err := nodepkg.Open(ctx, nodepkg.Options{Mode: nodepkg.ModeServer, Socket: socket, Devices: fixture.DriversOf(dev), Registry: r})
	require.NoError(t, err)
	defer node.Close()
	node.Ready()
	x, err := fixture.Filled(dev, 1024, 1)
	require.NoError(t, err)
	defer x.Close()
	info := func() endpoint.ServerInfo {
		info, err := node.ServerInfo(ctx)
		require.NoError(t, err)
		return info
	}
	for by := range 3 { // three objects over one memory
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, node, "same", fixture.ScaleIn{X: x, By: float32(by)})
		require.NoError(t, err)
		defer ref.Close()
	}
	got := info()
	require.EqualValues(t, 3, got.Stats.Objects)
	require.EqualValues(t, 3, got.Stats.CachedObjects)
	require.EqualValues(t, 4096, got.Stats.BytesOwned)
	require.Zero(t, got.Stats.BytesMapped, "nothing is a client's")
	require.Zero(t, got.Stats.Clients)
	require.Len(t, got.Sessions, 1)
	require.True(t, got.Sessions[0].Self)
	require.EqualValues(t, 3, got.Sessions[0].Objects)
	proctest.Eventually(t, fixture.WaitLimit, "no request of its own is in flight but the one that asks", func() bool { return info().Sessions[0].Requests == 0 })
	require.EqualValues(t, 4096, got.Sessions[0].Bytes)

	fixture.HostOnly(t, "only host memory has a name by which it is known when it comes again")
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "same", fixture.ScaleIn{X: x, By: -1}) // maps it again
	require.NoError(t, err)
	defer ref.Close()
	got = info()
	require.EqualValues(t, 4, got.Stats.Objects)
	require.EqualValues(t, 4096, got.Stats.BytesOwned)
	require.EqualValues(t, 4096, got.Stats.BytesMapped)
}

func TestServerInfoReferences(t *testing.T) {
	drivertest.Leaks(t)
	ctx := context.Background()
	const all = 100
	c, _, _ := fixture.ClientOfOwner(t)
	for i := range all {
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "fresh model", fixture.ModelIn{Size: 1 + i})
		require.NoError(t, err)
		defer ref.Close()
	}
	info, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	of := info.Sessions[1]
	require.EqualValues(t, all, of.Objects)
	require.EqualValues(t, 4*all*(all+1)/2, of.Bytes)
	require.Len(t, of.References, 16)
	for i := range 15 {
		require.EqualValues(t, 4, of.References[i].Bytes-of.References[i+1].Bytes, "the largest, and none left out")
	}
}

// Expirations are counted when time passes.
func TestServerInfoExpirations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		r := endpoint.NewRegistry(endpoint.Cached())
		require.NoError(t, endpoint.Register(r, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil }))
		require.NoError(t, endpoint.Register(r, "fail", func(context.Context, int) (int, error) { return 0, errors.New("no") }))
		node, err := endpoint.NewServer(endpoint.ServerOptions{
			Local: true, Registry: r, Results: endpoint.ResultOptions{Entries: 2, TTL: time.Minute}, Tasks: endpoint.TaskOptions{TTL: time.Minute},
		})
		require.NoError(t, err)
		for n := range 3 { // the cache has room for two of them
			require.NoError(t, node.Call(ctx, "double", n, nil))
		}
		require.ErrorContains(t, node.Call(ctx, "fail", 1, nil), "no")
		for _, name := range []string{"double", "fail"} {
			submitted, err := node.Submit(ctx, name, 2)
			require.NoError(t, err)
			_, _ = submitted.Wait(ctx)
		}
		time.Sleep(10 * time.Second)
		info, err := node.ServerInfo(ctx)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, info.Uptime)
		require.EqualValues(t, 2, info.Stats.CacheEntries)
		require.EqualValues(t, 1, info.Stats.CacheEvictions)
		require.Zero(t, info.Stats.CacheExpirations)
		time.Sleep(time.Minute)
		synctest.Wait()
		info, err = node.ServerInfo(ctx)
		require.NoError(t, err)
		require.Equal(t, 70*time.Second, info.Uptime)
		require.EqualValues(t, 2, info.Stats.CacheExpirations)
		require.Zero(t, info.Stats.CacheEntries)
		require.EqualValues(t, 2, info.Stats.TasksExpired)
		require.EqualValues(t, 1, info.Stats.TasksCompleted)
		require.EqualValues(t, 1, info.Stats.TasksFailed)
		require.Zero(t, info.Stats.Tasks)
		require.Equal(t, endpoint.EndpointStats{Name: "fail", Calls: 2, Failures: 2, Runs: 2, Errors: 2, Durations: []uint64{2}}, countsOf(t, info, "fail"))
		require.EqualValues(t, 1, countsOf(t, info, "double").CacheHits, "the task found what a call had made")
		require.False(t, info.Running, "it has no socket")
		require.Equal(t, -1, info.DeviceIndex)
		require.NoError(t, node.Close())
	})
}

func TestServerInfoDeviceIndex(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(proctest.SocketPath(t))
	for name, want := range map[string]int{"a-0.sock": 0, "a-12.sock": 12, "a.sock": -1, "a-1": -1, "-.sock": -1, "a--1.sock": 1, "a-x.sock": -1, "a-99999999999.sock": -1} {
		s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: filepath.Join(dir, name)})
		require.NoError(t, err)
		info, err := s.ServerInfo(context.Background())
		require.NoError(t, err)
		require.Equal(t, want, info.DeviceIndex, name)
		require.True(t, info.Running)
		require.False(t, info.Ready, "nobody called Serve")
		require.NoError(t, s.Close())
	}
}

// trier is a device whose Probe was called.
type trier struct {
	driver.Device
	tries int
	err   error
}

func (d *trier) Probe() []driver.Support {
	d.tries++
	return []driver.Support{{Kind: driver.Memfd, Err: d.err}}
}

func TestServerInfoProbesDevicesOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dev := &trier{Device: fixture.Device(t), err: fmt.Errorf("alloc: %w", driver.ErrOutOfMemory)}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer s.Close()
	ask := func() endpoint.HandleSupport {
		info, err := s.ServerInfo(ctx)
		require.NoError(t, err)
		require.Len(t, info.Capabilities.Handles, 1)
		return info.Capabilities.Handles[0]
	}
	require.Zero(t, dev.tries, "not before somebody wants to know")
	require.Equal(t, endpoint.HandleSupport{Device: dev.Info().UUID.String(), Kind: "memfd", Reason: "alloc: out of memory"}, ask())
	dev.err = nil
	require.True(t, ask().Supported, "memory may come back")
	require.True(t, ask().Supported)
	require.Equal(t, 2, dev.tries)
}
