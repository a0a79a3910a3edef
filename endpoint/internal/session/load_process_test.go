package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// The tests of load and faults have separate processes: an owner that is queried through its endpoints, and clients
// that attach, call, and wait to be killed.
var (
	loadOwners  = proctest.NewRole("load owner", nil, func() (*loadServer, error) { return &loadServer{}, nil })
	loadClients = proctest.NewRole("load clients", nil, func() (*loadHolders, error) { return &loadHolders{}, nil })

	serveLoadOp = proctest.NewOp(loadOwners, "serve", (*loadServer).serve)
	holdOp      = proctest.NewOp(loadClients, "hold", (*loadHolders).hold)
)

// loadServer is a process that owns a model.
type loadServer struct{ server *endpoint.Server }

// loadHolders is a process with many clients. The handles stay reachable and are never closed.
type loadHolders struct{ handles []*endpoint.Handle }

// loadSize is the number of clients of a process.
type loadSize struct {
	Socket  string
	Clients int
}

// loadCounts counts events in the functions of a load owner.
type loadCounts struct {
	started, stopped atomic.Int64

	mu   sync.Mutex
	here int
	all  chan struct{} // closed when enough callers have arrived
}

// meet waits until n callers have arrived, or ctx ends.
func (c *loadCounts) meet(ctx context.Context, n int) error {
	c.mu.Lock()
	if c.all == nil {
		c.all = make(chan struct{})
	}
	all := c.all
	if c.here++; c.here == n {
		close(all)
		c.here, c.all = 0, nil
	}
	c.mu.Unlock()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// loadStats are the resources of a load owner.
type loadStats struct {
	Started, Stopped        int64
	Files, Maps, Goroutines int
	Heap                    uint64
}

// loadRegistry has functions that wait, count and compute almost nothing.
func loadRegistry(c *loadCounts) *endpoint.Registry {
	r := endpoint.NewRegistry()
	err := errors.Join(
		endpoint.Register(r, "next", func(_ context.Context, n int) (int, error) { return n + 1, nil }),
		endpoint.Register(r, "meet", func(ctx context.Context, n int) (int, error) { return n, c.meet(ctx, n) }),
		endpoint.Register(r, "wait", func(ctx context.Context, quick bool) (bool, error) {
			if quick {
				return true, nil
			}
			c.started.Add(1)
			defer c.stopped.Add(1)
			<-ctx.Done()
			return false, context.Cause(ctx)
		}),
		endpoint.Register(r, "leave", func(_ context.Context, leave bool) (bool, error) {
			if leave {
				runtime.Goexit()
			}
			return true, nil
		}),
		endpoint.Register(r, "bytes", func(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil }),
		endpoint.Register(r, "same", func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x.Alias(), nil }),
		endpoint.Register(r, "stats", func(context.Context, struct{}) (loadStats, error) { return c.stats(), nil }),
	)
	if err != nil {
		panic(err)
	}
	return r
}

// stats returns the resources of this process after a collection.
func (c *loadCounts) stats() loadStats {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return loadStats{
		Started: c.started.Load(), Stopped: c.stopped.Load(), Heap: m.HeapAlloc,
		Files: drivertest.OpenFiles(), Maps: drivertest.SharedMappings(), Goroutines: runtime.NumGoroutine(),
	}
}

// serve serves the model m on a socket.
func (l *loadServer) serve(socket string) (struct{}, error) {
	dev, err := host.Open()
	if err != nil {
		return struct{}{}, err
	}
	l.server, err = endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Devices: []driver.Device{dev}, Registry: loadRegistry(new(loadCounts)), Logger: fixture.Discard(),
		Limits: endpoint.Limits{Wire: patient},
	})
	if err != nil {
		return struct{}{}, err
	}
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 1 << 16})
	if err != nil {
		return struct{}{}, err
	}
	defer sd.Close()
	if _, err := l.server.Publish(context.Background(), "m", sd, endpoint.PublishOptions{}); err != nil {
		return struct{}{}, err
	}
	go func() {
		if err := l.server.Serve(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}()
	return struct{}{}, nil
}

// hold creates the clients. Each acquires the model and calls.
func (l *loadHolders) hold(in loadSize) (struct{}, error) {
	dev, err := host.Open()
	if err != nil {
		return struct{}{}, err
	}
	var all sync.WaitGroup
	failures := make([]error, in.Clients)
	l.handles = make([]*endpoint.Handle, in.Clients)
	for i := range in.Clients {
		all.Go(func() { l.handles[i], failures[i] = holdModel(in.Socket, dev, in.Clients > 1) })
	}
	all.Wait()
	return struct{}{}, errors.Join(failures...)
}

// patient gives each of a thousand concurrent handshakes enough time on a busy machine.
var patient = wire.Limits{HandshakeTimeout: 4 * fixture.WaitLimit}

func holdModel(socket string, dev driver.Device, calls bool) (*endpoint.Handle, error) {
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Limits: patient})
	if err != nil {
		return nil, err
	}
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	if err != nil || !calls {
		return h, err
	}
	got, err := endpoint.Call[int](ctx, c, "next", 1)
	if err == nil && got != 2 {
		err = fmt.Errorf("2 is %d", got)
	}
	return h, err
}

// holdLoad starts a process with the given number of clients, and waits until they hold the model. It may be called
// concurrently: it reports a failure and returns nil.
func holdLoad(t testing.TB, socket string, clients int) *proctest.Process[loadHolders] {
	p := loadClients.Start(t)
	if _, err := holdOp.Ask(p, loadSize{socket, clients}); err != nil {
		t.Error(err)
		p.Kill()
		return nil
	}
	return p
}

// loadOwner starts a process that owns the model m, and returns a client of it in this process.
func loadOwner(t testing.TB) (*proctest.Process[loadServer], *endpoint.Client) {
	t.Helper()
	fixture.HostOnly(t, "the device makes no difference to it")
	socket := proctest.SocketPath(t)
	o := loadOwners.Start(t)
	serveLoadOp.Must(o, socket)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{fixture.Device(t)}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	keepCalling(t, c)
	return o, c
}

// keepCalling makes enough requests to allocate all resources of the connection, including its ring.
func keepCalling(t testing.TB, c *endpoint.Client) {
	t.Helper()
	for range 40 {
		_, err := c.List(context.Background())
		require.NoError(t, err)
	}
}

// statsOf returns the stats of a load owner.
func statsOf(t testing.TB, c *endpoint.Client) loadStats {
	t.Helper()
	s, err := endpoint.Call[loadStats](context.Background(), c, "stats", struct{}{})
	require.NoError(t, err)
	return s
}

// settled waits until an owner has at most the resources of before.
func settled(t testing.TB, c *endpoint.Client, before loadStats) {
	t.Helper()
	var now loadStats
	proctest.Eventually(t, fixture.WaitLimit, "descriptors, mappings and goroutines of the owner are back", func() bool {
		now = statsOf(t, c)
		return now.Files <= before.Files && now.Maps <= before.Maps && now.Goroutines <= before.Goroutines
	})
}

// residentBytes returns the private resident memory of a process.
func residentBytes(t testing.TB, pid int32) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	require.Fail(t, "no RssAnon")
	return 0
}
