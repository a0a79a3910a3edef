package bins_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// childMember runs one server of a cluster until its standard input ends. Its arguments are its name, its store, its
// address for clients, its cluster address and the cluster addresses of the other servers.
func childMember() {
	port := func(address string) (host string, number int) {
		host, text, _ := net.SplitHostPort(address)
		number, _ = strconv.Atoi(text)
		return host, number
	}
	opts := &server.Options{
		ServerName: os.Args[1], StoreDir: os.Args[2], JetStream: true, JetStreamMaxStore: 64 << 30, JetStreamMaxMemory: 64 << 20, NoSigs: true, NoLog: true,
	}
	opts.Host, opts.Port = port(os.Args[3])
	opts.Cluster.Name = "test"
	opts.Cluster.Host, opts.Cluster.Port = port(os.Args[4])
	for _, other := range strings.Split(os.Args[5], ",") {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: other})
	}
	s, err := server.NewServer(opts)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	s.Start()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
}

// cluster is three servers, each in a separate process.
type cluster struct {
	t       testing.TB
	clients []string
	routes  []string
	stores  []string
	members []*child
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{t: t, members: make([]*child, 3)}
	for range c.members {
		c.clients, c.routes, c.stores = append(c.clients, remotetest.FreeAddress(t)), append(c.routes, remotetest.FreeAddress(t)), append(c.stores, t.TempDir())
	}
	for i := range c.members {
		c.start(i)
	}
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	m := startChild(c.t, "member", fmt.Sprintf("s%d", i), c.stores[i], c.clients[i], c.routes[i], strings.Join(c.routes, ","))
	require.True(c.t, m.out.Scan())
	require.Equal(c.t, "ready", m.out.Text())
	c.members[i] = m
}

// connect connects to any server that answers.
func (c *cluster) connect() *nats.Conn {
	c.t.Helper()
	conn, err := natslink.Connect("nats://" + strings.Join(c.clients, ",nats://"))
	require.NoError(c.t, err)
	c.t.Cleanup(conn.Close)
	return conn
}

// openStore opens a namespace when the servers have formed a cluster.
func (c *cluster) openStore(ctx context.Context) *bins.Store {
	c.t.Helper()
	conn := c.connect()
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		s, err := bins.Open(try, conn, bins.Options{Namespace: "test", Replicas: 3})
		cancel()
		if err == nil {
			return s
		}
		require.NoError(c.t, ctx.Err(), "%v", err)
		time.Sleep(200 * time.Millisecond)
	}
}

// killLeader kills the leader of a stream, which is the worst server to lose, and returns its number.
func (c *cluster) killLeader(ctx context.Context, js jetstream.JetStream, stream string) int {
	c.t.Helper()
	number := -1
	require.Eventually(c.t, func() bool {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		s, err := js.Stream(try, stream)
		if err != nil || s.CachedInfo().Cluster == nil {
			return false
		}
		_, err = fmt.Sscanf(s.CachedInfo().Cluster.Leader, "s%d", &number)
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	c.members[number].kill()
	return number
}

// If the leader of three servers is killed and restarted during use of bins and a training run, every acknowledged item
// is stored once and taken once, and the worker receives the published parameters. Items of a take that ended with
// ErrOutcomeUnknown may be missing.
func TestClusterLosesAServer(t *testing.T) {
	c := startCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // for a busy machine
	defer cancel()
	s := c.openStore(ctx)
	js, err := jetstream.New(c.connect())
	require.NoError(t, err)
	run := startRun(ctx, t, c)
	b := &ledger{acked: map[string]bool{}, taken: map[string]int{}}
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		case <-time.After(2 * time.Millisecond):
			return false
		}
	}
	var both sync.WaitGroup
	both.Go(func() {
		for i := 0; !stopped(); i++ {
			name := strconv.Itoa(i)
			switch _, err := s.Append(ctx, "a", text(name)); {
			case err == nil:
				b.acked[name] = true
			case !errors.Is(err, bins.ErrOutcomeUnknown):
				t.Error(err)
				return
			}
		}
	})
	both.Go(func() {
		for !stopped() {
			if err := b.take(ctx, s); err != nil && !errors.Is(err, bins.ErrNotFound) {
				t.Error(err)
				return
			}
		}
	})
	run.requireGoesOn(ctx, t)
	number := c.killLeader(ctx, js, "BINS_test")
	run.requireGoesOn(ctx, t) // with two of three servers
	c.start(number)
	run.requireGoesOn(ctx, t)
	close(stop)
	both.Wait()
	for quiet := time.Now(); b.missing() > b.doubt && ctx.Err() == nil; { // a restarted replica may return old data
		err := b.take(ctx, s)
		if err == nil {
			quiet = time.Now()
			continue
		}
		require.ErrorIs(t, err, bins.ErrNotFound)
		require.Less(t, time.Since(quiet), 2*time.Minute, "%d of %d acknowledged items are missing", b.missing(), len(b.acked))
		time.Sleep(50 * time.Millisecond)
	}
	require.NoError(t, ctx.Err())
	for name, n := range b.taken {
		require.Equal(t, 1, n, "item %s", name)
	}
	require.NotEmpty(t, b.acked)
	require.NotEmpty(t, b.taken)
	t.Logf("%d items acknowledged, %d taken, %d at most in doubt", len(b.acked), len(b.taken), b.doubt)
}

// takenAtOnce is the maximum number of items in one take of the ledger.
const takenAtOnce = 3

// ledger records the items that were written and taken.
type ledger struct {
	acked map[string]bool
	taken map[string]int
	doubt int // items that takes with an unknown outcome may have removed
}

func (b *ledger) take(ctx context.Context, s *bins.Store) error {
	items, err := s.Take(ctx, "a", bins.TakeOptions{Max: takenAtOnce})
	if errors.Is(err, bins.ErrOutcomeUnknown) {
		b.doubt += takenAtOnce
		return nil
	}
	for _, item := range items {
		b.taken[string(item.Body)]++
	}
	return err
}

// missing returns the number of acknowledged items that were not taken.
func (b *ledger) missing() (n int) {
	for name := range b.acked {
		if b.taken[name] == 0 {
			n++
		}
	}
	return n
}

// trainingRun is a trainer and a worker.
type trainingRun struct {
	trainer *rl.Trainer
	worker  *rl.Worker
	dev     *host.Device
}

func startRun(ctx context.Context, t *testing.T, c *cluster) *trainingRun {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	r := &trainingRun{dev: dev}
	opts := rl.Options{Conn: c.connect(), Run: "test", Name: "trainer", Device: dev, Replicas: 3}
	r.trainer, err = rl.NewTrainer(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.trainer.Close() }) // a server may be restarting
	opts.Conn, opts.Name = c.connect(), "worker"
	r.worker, err = rl.NewWorker(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.worker.Close() })
	return r
}

// requireGoesOn publishes parameters, requires that the worker receives them, and requires that the worker's data
// arrives.
func (r *trainingRun) requireGoesOn(ctx context.Context, t *testing.T) {
	t.Helper()
	w, err := tensor.FromSlice(r.dev, tensor.Shape{2}, []float32{1, 2})
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", w))
	defer sd.Close()
	version, err := r.trainer.Publish(ctx, sd)
	require.NoError(t, err)
	p, err := r.worker.Await(ctx, version-1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, p.Version(), version)
	require.NoError(t, p.Close())
	require.NoError(t, r.worker.Add(ctx, text(fmt.Sprint(version))))
	for { // unacknowledged samples are delivered again
		samples, err := r.trainer.Pull(ctx, 10)
		require.NoError(t, err)
		for _, sample := range samples {
			require.NoError(t, sample.Ack(ctx))
			if string(sample.Body) == fmt.Sprint(version) {
				return
			}
		}
	}
}
