package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Clients perform random operations with a server, over connections within the process that delay and cut frames, while
// the server is killed, drained and restarted. Time is that of testing/synctest, so minutes take milliseconds. A model
// defines what clients may observe, and finally the server's catalog must agree with the clients. A seed determines
// operations, delays and cuts:
//
//	SHAREDTENSOR_SEED=17 go test -run TestSimulation ./endpoint      this seed, with a log
//	SHAREDTENSOR_SEEDS=100000 go test -run TestSimulation ./endpoint  this many new seeds
//
// Goroutines that are ready at the same moment run in any order, so a seed may have to be repeated (-count).
func TestSimulation(t *testing.T) {
	drivertest.Leaks(t)
	first, count := uint64(1), uint64(200)
	if testing.Short() || proctest.RaceDetector() {
		count = 100
	}
	repeat := os.Getenv("SHAREDTENSOR_SEED")
	if repeat != "" {
		seed, err := strconv.ParseUint(repeat, 10, 64)
		require.NoError(t, err)
		first, count = seed, 1
	} else if text := os.Getenv("SHAREDTENSOR_SEEDS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		first, count = rand.Uint64N(1e12), n
	}
	dir := t.TempDir()
	workers := min(uint64(runtime.GOMAXPROCS(0)), count)
	for w := range workers {
		t.Run(fmt.Sprint("worker ", w), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(dir, fmt.Sprint(w, ".sock"))
			for seed := first + w; seed < first+count && !t.Failed(); seed += workers {
				synctest.Test(t, func(t *testing.T) { simulate(t, seed, path, repeat != "") })
			}
		})
	}
}

// simulation is one run.
type simulation struct {
	t       *testing.T
	dev     *host.Device
	path    string
	model   *simModel
	network *simNetwork
	clients []*simClient

	mu     sync.Mutex
	server *Server
	ending sync.WaitGroup
	trace  []string
	start  time.Time
}

// newSimulation starts a server and three clients.
func newSimulation(t *testing.T, seed uint64, path string) *simulation {
	dev, err := host.Open()
	require.NoError(t, err)
	s := &simulation{t: t, dev: dev, path: path, model: newSimModel(), network: newSimNetwork(seed), start: time.Now()}
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	info, err := os.Stat(path)
	require.NoError(t, err)
	listener := &transport.PipeListener{Dial: s.network.dial}
	listener.Announce(transport.FileOf(info))
	t.Cleanup(func() { listener.Conceal(transport.FileOf(info)) })
	s.startServer()
	s.startClients(seed, 3)
	return s
}

// simulate runs a seed and fails the test if the model is violated.
func simulate(t *testing.T, seed uint64, path string, verbose bool) {
	s := newSimulation(t, seed, path)
	rng := rand.New(rand.NewPCG(seed, 0))
	if seed%3 > 0 {
		s.network.cutFrames(50 + rng.IntN(300))
	}
	s.disturb(rng, func() {
		var all sync.WaitGroup
		for _, c := range s.clients {
			all.Go(func() { c.run(40) })
		}
		all.Wait()
	})
	s.settle()
	s.finish()
	if failures := s.model.failures(); len(failures) > 0 || verbose {
		trace := strings.Join(s.trace, "\n")
		t.Logf("what happened, by the time since the start:\n%s", trace)
		if len(failures) > 0 {
			t.Errorf("%s\nto repeat it: SHAREDTENSOR_SEED=%d go test -count=20 -failfast -run '^TestSimulation$' ./endpoint",
				strings.Join(failures, "\n"), seed)
		}
	}
}

// note adds a line to the log of a failure.
func (s *simulation) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, fmt.Sprintf("%12s  ", time.Since(s.start))+fmt.Sprintf(format, args...))
}

// serverID returns the id of the current or last server.
func (s *simulation) serverID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server.ID()
}

// startServer starts a server that clients find.
func (s *simulation) startServer() {
	registry := NewRegistry()
	server, err := newServer(ServerOptions{
		Socket: s.path, Devices: []driver.Device{s.dev}, Registry: registry, Logger: slog.New(slog.DiscardHandler), Tasks: TaskOptions{Workers: 2},
	})
	require.NoError(s.t, err)
	s.register(registry, server.ID())
	server.core.Sessions.Open()
	s.mu.Lock()
	s.server = server
	s.mu.Unlock()
	s.note("server %s starts", server.ID())
	s.network.use(server)
}

// register adds the functions that clients call. They take some time.
func (s *simulation) register(r *Registry, server string) {
	pause := func(ctx context.Context, n int64) error {
		select {
		case <-time.After(time.Duration(n%7) * 3 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	once := func(ctx context.Context, n int64) (int64, error) {
		s.model.ran(n)
		return n + 1, pause(ctx, n)
	}
	require.NoError(s.t, Register(r, "once", once))
	require.NoError(s.t, Register(r, "task", once, AsTask()))
	require.NoError(s.t, Register(r, "cached", func(ctx context.Context, key string) (int64, error) {
		number := s.model.ranCached(server, key)
		return number, pause(ctx, number)
	}, Cached()))
	require.NoError(s.t, Register(r, "object", func(ctx context.Context, _ string) (*tensor.Tensor, error) {
		if err := pause(ctx, s.model.number()); err != nil {
			return nil, err
		}
		return tensor.Full(s.dev, tensor.Int64, tensor.Shape{4}, 1)
	}, Managed()))
}

func (s *simulation) startClients(seed uint64, n int) {
	for i := range n {
		client, err := NewClient(ClientOptions{Socket: s.path, Devices: []driver.Device{s.dev}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(s.t, err)
		s.clients = append(s.clients, &simClient{
			sim: s, name: fmt.Sprint("client ", i+1), client: client, rng: rand.New(rand.NewPCG(seed, 1<<32+uint64(i))),
		})
	}
}

// disturb disturbs connections and the server while work runs. A server exists at the end.
func (s *simulation) disturb(rng *rand.Rand, work func()) {
	done := make(chan struct{})
	go func() { defer close(done); work() }()
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rng.IntN(150)+1) * time.Millisecond):
		}
		switch rng.IntN(10) {
		case 0, 1:
			s.note("%d connections are cut", s.network.cutSome(rng, 0.5))
			continue
		case 2:
			s.killServer()
		case 3:
			s.drainServer(time.Duration(rng.IntN(30)) * time.Millisecond)
		default:
			continue
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		s.startServer()
	}
}

// killServer cuts all connections at once and removes the server, like SIGKILL.
func (s *simulation) killServer() {
	s.note("the server is killed")
	s.network.use(nil)
	s.network.cutSome(nil, 1)
	server := s.server
	s.ending.Go(func() { _ = server.Close() })
}

// drainServer shuts the server down, while another one may start.
func (s *simulation) drainServer(limit time.Duration) {
	s.note("the server drains")
	s.network.use(nil)
	server := s.server
	s.ending.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = server.Shutdown(ctx)
	})
}

// settle waits until everything is at rest and compares the server's catalog with the clients.
func (s *simulation) settle() {
	s.network.calmDown()
	time.Sleep(time.Minute)
	for _, c := range s.clients { // a client that needs no connection has none
		_, err := c.client.Ping(context.Background())
		s.check(err == nil, "%s has no answer from the server: %v", c.name, err)
	}
	s.model.checkAbsent()
	info, err := s.server.ServerInfo(context.Background())
	require.NoError(s.t, err)
	id := s.server.ID()
	held := map[string]map[uint64]bool{}
	var leases, refs uint64
	for _, c := range s.clients {
		s.check(c.client.ServerID() == id, "%s is connected to %q, the server is %s", c.name, c.client.ServerID(), id)
		for _, h := range c.handles {
			_ = c.check(context.Background())
			if h.Leased() {
				leases++
				if held[h.Name()] == nil {
					held[h.Name()] = map[uint64]bool{}
				}
				held[h.Name()][h.Version()] = true
				s.check(h.ServerID() == id, "%s has a lease of server %s", c.name, h.ServerID())
			}
		}
		for _, r := range c.refs {
			if r.Err() == nil {
				refs++
			}
		}
	}
	s.check(info.Stats.Leases == leases, "the server knows of %d leases, the clients have %d", info.Stats.Leases, leases)
	s.check(info.Stats.TasksRunning == 0 && info.Stats.TasksPending == 0, "%d tasks run, %d wait", info.Stats.TasksRunning, info.Stats.TasksPending)
	s.check(info.Stats.Clients == uint64(len(s.clients)), "the server has %d clients", info.Stats.Clients)
	s.checkVersions(held)
	s.checkObjects(refs)
	s.checkWatchers(id)
}

func (s *simulation) check(ok bool, format string, args ...any) {
	if !ok {
		s.model.fail(format, args...)
	}
}

// checkVersions checks that a server has the newest version of each name, unless withdrawn, and those that clients
// hold.
func (s *simulation) checkVersions(held map[string]map[uint64]bool) {
	models, err := s.server.List(context.Background())
	s.check(err == nil, "list: %v", err)
	for _, m := range models {
		want := maps.Clone(held[m.Name])
		if want == nil {
			want = map[uint64]bool{}
		}
		if m.Current != 0 {
			want[m.Current] = true
		}
		var have []uint64
		for _, v := range m.Versions {
			have = append(have, v.Version)
		}
		slices.Reverse(have)
		expected := slices.Sorted(maps.Keys(want))
		s.check(slices.Equal(have, expected), "the server has versions %v of %s; current and held are %v", have, m.Name, expected)
		for v := range held[m.Name] {
			s.check(slices.Contains(have, v), "version %d of %s is held, and the server does not have it", v, m.Name)
		}
		delete(held, m.Name)
	}
	s.check(len(held) == 0, "names are held that the server does not have: %v", held)
}

// checkObjects checks that the references of objects are those of clients.
func (s *simulation) checkObjects(refs uint64) {
	objects, err := s.server.Objects(context.Background())
	require.NoError(s.t, err)
	var counted uint64
	for _, o := range objects {
		counted += o.Refs
	}
	s.check(counted == refs, "the server counts %d references to objects, the clients have %d", counted, refs)
}

// checkWatchers checks that watchers know the newest versions.
func (s *simulation) checkWatchers(id string) {
	models, err := s.server.List(context.Background())
	s.check(err == nil, "list: %v", err)
	for _, m := range models {
		for _, c := range s.clients {
			c.mu.Lock()
			e, ok := c.last[m.Name]
			c.mu.Unlock()
			if c.watcher == nil || m.Current == 0 && !ok {
				continue
			}
			if m.Current == 0 {
				s.check(e.Server != id || e.Kind == EventWithdrawn, "%s has not heard that %s was withdrawn", c.name, m.Name)
			} else {
				s.check(e.Server == id && e.Kind == EventPublished && e.Version == m.Current,
					"%s has heard of %s of version %d of %s at %s last; version %d is the newest", c.name, e.Kind, e.Version, m.Name, e.Server, m.Current)
			}
		}
	}
}

// finish releases everything in steps and checks that nothing is left.
func (s *simulation) finish() {
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.close())
	}
	time.Sleep(time.Second)
	stats := s.serverStats()
	s.check(stats.Leases == 0 && stats.Objects == 0 && stats.Clients == 0 && stats.Watchers == 0,
		"clients have left and the server has %d leases, %d objects, %d clients, %d watchers", stats.Leases, stats.Objects, stats.Clients, stats.Watchers)
	errs = append(errs, s.server.Close())
	s.ending.Wait()
	s.network.relays.Wait()
	errs = append(errs, s.dev.Close())
	if err := errors.Join(errs...); err != nil {
		s.model.fail("in the end: %v", err)
	}
}

func (s *simulation) serverStats() ServerStats {
	info, err := s.server.ServerInfo(context.Background())
	require.NoError(s.t, err)
	return info.Stats
}

// A name is withdrawn while the watcher has no connection. After the reconnection the same owner reports the current
// versions, and the watcher detects the missing one.
func TestWatcherWithdrawalWhileAway(t *testing.T) {
	drivertest.Leaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, 1, filepath.Join(t.TempDir(), "socket"))
		ctx := context.Background()
		c := s.clients[0].client
		for _, name := range []string{"stays", "goes", "comes back"} {
			sd, err := simStateDict(s.dev, 1)
			require.NoError(t, err)
			_, err = s.server.Publish(ctx, name, sd, PublishOptions{})
			require.NoError(t, err)
			require.NoError(t, sd.Close())
		}
		w, err := c.Watch(ctx)
		require.NoError(t, err)
		next := func() Event {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			e, err := w.next(ctx)
			require.NoError(t, err)
			e.Server = ""
			return e
		}
		for range 3 {
			require.Equal(t, EventPublished, next().Kind)
		}
		server := s.server
		s.network.use(nil)
		s.network.cutSome(nil, 1)
		require.Equal(t, EventOwnerLost, next().Kind)
		require.NoError(t, server.Withdraw(context.Background(), "goes"))
		require.NoError(t, server.Withdraw(context.Background(), "comes back"))
		sd, err := simStateDict(s.dev, 2)
		require.NoError(t, err)
		_, err = server.Publish(ctx, "comes back", sd, PublishOptions{})
		require.NoError(t, err)
		require.NoError(t, sd.Close())
		s.network.use(server)
		require.Equal(t, EventOwnerBack, next().Kind)
		events := []Event{next(), next()}
		require.Contains(t, events, Event{Kind: EventWithdrawn, Name: "goes", Version: 1})
		require.Contains(t, events, Event{Kind: EventPublished, Name: "comes back", Version: 2})
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err = w.next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "nothing else has happened")
		s.finish()
		require.Empty(t, s.model.failures())
	})
}
