package rl_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const childKind = "RL_TEST_CHILD"

func TestMain(m *testing.M) {
	kind := os.Getenv(childKind)
	if kind == "" {
		os.Exit(m.Run())
	}
	if err := map[string]func() error{"nats": childNATS, "owner": childOwner, "worker": childWorker}[kind](); err != nil {
		fmt.Fprintln(os.Stderr, kind+":", err)
		os.Exit(1)
	}
}

// childNATS runs a server. Its arguments are the store and the address.
func childNATS() error {
	server, err := natslink.Start(natslink.ServerOptions{Store: os.Args[1], Listen: os.Args[2], Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	_ = server.Close()
	return err
}

// childOwner runs an owner of tensors. Its argument is the socket.
func childOwner() error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: os.Args[1], Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(context.Background()) }()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// childWorker adds a sample for every version of the run's parameters that it receives: version, first element, whether
// it was shared. Arguments: the URL, the run, its name, and a socket or "".
func childWorker() error {
	ctx := context.Background()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	conn, err := natslink.Connect(os.Args[1])
	if err != nil {
		return err
	}
	opts := rl.Options{Run: os.Args[2], Name: os.Args[3], Conn: conn, Device: dev}
	if os.Args[4] != "" {
		if opts.Owner, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: os.Args[4], Devices: []driver.Device{dev}}); err != nil {
			return err
		}
	}
	w, err := rl.NewWorker(ctx, opts)
	if err != nil {
		return err
	}
	for version := int64(-1); ; {
		p, err := w.Await(ctx, version)
		if err != nil {
			return err
		}
		version = p.Version()
		t, _ := p.StateDict().Get("w")
		first, err := tensor.At[float32](t, 0)
		if err != nil {
			return err
		}
		if err := w.Add(ctx, bins.Value{Body: fmt.Appendf(nil, "%d %g %v", version, first, p.Shared())}); err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
}

type child struct {
	cmd *exec.Cmd
	in  io.Closer
}

func startChild(t testing.TB, kind string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childKind+"="+kind)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, in: in}
	t.Cleanup(c.kill)
	if kind != "worker" {
		scan := bufio.NewScanner(out)
		require.True(t, scan.Scan())
		require.Equal(t, "ready", scan.Text())
	}
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// site is a NATS server and an owner, each in a separate process.
type site struct {
	dir, address, url, socket string
	nats                      *child
	dev                       driver.Device
}

func newSite(t testing.TB) *site {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	s := &site{dir: t.TempDir(), address: remotetest.FreeAddress(t), dev: dev}
	s.url = "nats://" + s.address
	s.nats = startChild(t, "nats", filepath.Join(s.dir, "nats"), s.address)
	s.socket = filepath.Join(s.dir, "owner.sock")
	startChild(t, "owner", s.socket)
	return s
}

func (s *site) connect(t testing.TB) *nats.Conn {
	t.Helper()
	conn, err := natslink.Connect(s.url)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

func (s *site) owner(t testing.TB) *endpoint.Client {
	t.Helper()
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.socket, Devices: []driver.Device{s.dev}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *site) options(t testing.TB, name string, owner *endpoint.Client) rl.Options {
	return rl.Options{Run: "test", Name: name, Conn: s.connect(t), Device: s.dev, Owner: owner, Presence: 3 * time.Second}
}

// weights returns a state dict whose elements are all value.
func weights(t *testing.T, dev driver.Device, value float32) *module.StateDict {
	t.Helper()
	values := make([]float32, 1000)
	for i := range values {
		values[i] = value
	}
	w, err := tensor.FromSlice(dev, tensor.Shape{1000}, values)
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", w))
	return sd
}

func publish(t *testing.T, trainer *rl.Trainer, dev driver.Device, value float32) int64 {
	t.Helper()
	sd := weights(t, dev, value)
	version, err := trainer.Publish(t.Context(), sd)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	return version
}

func TestTrainerAndWorkers(t *testing.T) {
	site := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	trainer, err := rl.NewTrainer(ctx, site.options(t, "trainer", site.owner(t)))
	require.NoError(t, err)
	defer trainer.Close()

	startChild(t, "worker", site.url, "test", "near", site.socket)
	startChild(t, "worker", site.url, "test", "far", "")
	for value := range 3 {
		version := publish(t, trainer, site.dev, float32(value)+0.5)
		require.Equal(t, int64(value), version)
		seen := map[string]string{}
		for len(seen) < 2 {
			samples, err := trainer.Pull(ctx, 10)
			require.NoError(t, err)
			for _, s := range samples {
				require.Equal(t, version, s.Version, "older data is not delivered")
				seen[s.Worker] = string(s.Body)
				require.NoError(t, s.Ack(ctx))
			}
		}
		require.Equal(t, fmt.Sprintf("%d %g true", value, float32(value)+0.5), seen["near"])
		require.Equal(t, fmt.Sprintf("%d %g false", value, float32(value)+0.5), seen["far"])
	}
	n, err := trainer.Waiting(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestMembersJoinAndLeave(t *testing.T) {
	site := newSite(t)
	trainer, err := rl.NewTrainer(t.Context(), site.options(t, "trainer", nil))
	require.NoError(t, err)
	defer trainer.Close()
	names := func() (names []string) {
		members, err := trainer.Members(t.Context())
		require.NoError(t, err)
		for _, m := range members {
			names = append(names, m.Name+" "+m.Role)
		}
		return names
	}
	w, err := rl.NewWorker(t.Context(), site.options(t, "leaves", nil))
	require.NoError(t, err)
	require.Equal(t, []string{"leaves worker", "trainer trainer"}, names())
	require.NoError(t, w.Close())
	require.Equal(t, []string{"trainer trainer"}, names())
}

func TestPresenceEndsWhenKilled(t *testing.T) {
	site := newSite(t)
	conn := site.connect(t)
	trainer, err := rl.NewTrainer(t.Context(), rl.Options{Run: "test", Name: "trainer", Conn: conn, Device: site.dev, Presence: 3 * time.Second})
	require.NoError(t, err)
	defer trainer.Close()
	lost := site.connect(t)
	_, err = rl.NewWorker(t.Context(), rl.Options{Run: "test", Name: "killed", Conn: lost, Device: site.dev, Presence: 3 * time.Second})
	require.NoError(t, err)
	lost.Close() // as when its process ends
	require.Eventually(t, func() bool {
		members, err := trainer.Members(t.Context())
		return err == nil && len(members) == 1
	}, 15*time.Second, 200*time.Millisecond)
}

func TestTrainerRestarted(t *testing.T) {
	site := newSite(t)
	first, err := rl.NewTrainer(t.Context(), site.options(t, "first", nil))
	require.NoError(t, err)
	publish(t, first, site.dev, 1)
	publish(t, first, site.dev, 2)
	second, err := rl.NewTrainer(t.Context(), site.options(t, "second", nil))
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, int64(1), second.Version())
	require.Equal(t, int64(2), publish(t, second, site.dev, 3))

	sd := weights(t, site.dev, 4)
	defer sd.Close()
	_, err = first.Publish(t.Context(), sd)
	require.ErrorIs(t, err, rl.ErrSuperseded)
	require.NoError(t, first.Close())

	w, err := rl.NewWorker(t.Context(), site.options(t, "worker", nil))
	require.NoError(t, err)
	defer w.Close()
	p, err := w.Latest(t.Context())
	require.NoError(t, err)
	defer p.Close()
	require.Equal(t, int64(2), p.Version())
}

// A superseded trainer leaves the parameters and the membership of its successor intact, even if both have the same
// name.
func TestTrainerSameName(t *testing.T) {
	site := newSite(t)
	first, err := rl.NewTrainer(t.Context(), site.options(t, "trainer", nil))
	require.NoError(t, err)
	publish(t, first, site.dev, 0)
	second, err := rl.NewTrainer(t.Context(), site.options(t, "trainer", nil))
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, int64(1), publish(t, second, site.dev, 1))
	sd := weights(t, site.dev, 7)
	defer sd.Close()
	for range 2 {
		_, err = first.Publish(t.Context(), sd)
		require.ErrorIs(t, err, rl.ErrSuperseded)
	}
	require.NoError(t, first.Close())

	members, err := second.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, members, 1)
	w, err := rl.NewWorker(t.Context(), site.options(t, "worker", nil))
	require.NoError(t, err)
	defer w.Close()
	p, err := w.Latest(t.Context())
	require.NoError(t, err)
	defer p.Close()
	require.Equal(t, int64(1), p.Version())
	w0, _ := p.StateDict().Get("w")
	value, err := tensor.At[float32](w0, 0)
	require.NoError(t, err)
	require.InDelta(t, 1, value, 0)
}

// If the NATS server is killed and restarted, parameters and data stay, and the trainer and the workers continue.
func TestRunServerKilled(t *testing.T) {
	site := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	trainer, err := rl.NewTrainer(ctx, site.options(t, "trainer", nil))
	require.NoError(t, err)
	defer trainer.Close()
	w, err := rl.NewWorker(ctx, site.options(t, "worker", nil))
	require.NoError(t, err)
	defer w.Close()
	_, err = w.Latest(ctx)
	require.ErrorIs(t, err, rl.ErrNoParameters)
	publish(t, trainer, site.dev, 1)
	p, err := w.Await(ctx, -1)
	require.NoError(t, err)
	require.NoError(t, w.Add(ctx, bins.Value{Body: []byte("before")}))

	site.nats.kill()
	added := make(chan error, 1)
	go func() { added <- w.Add(ctx, bins.Value{Body: []byte("during")}) }()
	time.Sleep(200 * time.Millisecond)
	site.nats = startChild(t, "nats", filepath.Join(site.dir, "nats"), site.address)
	require.NoError(t, <-added)

	got := map[string]bool{}
	for len(got) < 2 {
		samples, err := trainer.Pull(ctx, 10)
		require.NoError(t, err)
		for _, s := range samples {
			got[string(s.Body)] = true
			require.NoError(t, s.Ack(ctx))
		}
	}
	require.Equal(t, map[string]bool{"before": true, "during": true}, got)
	version := publish(t, trainer, site.dev, 2)
	next, err := w.Await(ctx, p.Version())
	require.NoError(t, err)
	require.Equal(t, version, next.Version())
	require.NoError(t, p.Close())
	require.NoError(t, next.Close())
}

func TestStaleDataDropped(t *testing.T) {
	site := newSite(t)
	ctx := t.Context()
	opts := site.options(t, "trainer", nil)
	opts.Staleness = 1
	trainer, err := rl.NewTrainer(ctx, opts)
	require.NoError(t, err)
	defer trainer.Close()
	w, err := rl.NewWorker(ctx, site.options(t, "worker", nil))
	require.NoError(t, err)
	defer w.Close()
	for value := range 4 {
		publish(t, trainer, site.dev, float32(value))
		p, err := w.Await(ctx, int64(value)-1)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.NoError(t, w.Add(ctx, bins.Value{Body: fmt.Append(nil, value)}))
	}
	samples, err := trainer.Pull(ctx, 10)
	require.NoError(t, err)
	require.Len(t, samples, 2)
	require.Equal(t, int64(2), samples[0].Version)
	require.Equal(t, uint64(2), trainer.Dropped())
}

// Workers fetch parameters continuously while versions are published and old bytes are removed.
func TestReadersDuringPublishing(t *testing.T) {
	site := newSite(t)
	ctx := t.Context()
	opts := site.options(t, "trainer", nil)
	opts.Keep = 1
	trainer, err := rl.NewTrainer(ctx, opts)
	require.NoError(t, err)
	defer trainer.Close()
	publish(t, trainer, site.dev, 0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 3 {
		w, err := rl.NewWorker(ctx, site.options(t, fmt.Sprint("worker", i), nil))
		require.NoError(t, err)
		defer w.Close()
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				p, err := w.Latest(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				tensors, _ := p.StateDict().Get("w")
				first, err := tensor.At[float32](tensors, 999)
				if err != nil || first != float32(p.Version()) {
					t.Errorf("version %d has %v, %v", p.Version(), first, err)
				}
				_ = p.Close()
			}
		})
	}
	for value := 1; value < 30; value++ {
		publish(t, trainer, site.dev, float32(value))
	}
	close(stop)
	readers.Wait()
}

func TestOptionsInvalid(t *testing.T) {
	site := newSite(t)
	conn := site.connect(t)
	for _, opts := range []rl.Options{
		{}, {Run: "a.b", Conn: conn, Device: site.dev}, {Run: "a", Device: site.dev}, {Run: "a", Conn: conn},
		{Run: "a", Conn: conn, Device: site.dev, LocalOnly: true}, {Run: "a", Conn: conn, Device: site.dev, Name: "x y"},
	} {
		_, err := rl.NewWorker(t.Context(), opts)
		require.Error(t, err, "%+v", opts)
	}
}

// pause stops a process and returns when all its threads have stopped: one may run on for a moment after the signal.
func pause(t *testing.T, p *os.Process) {
	t.Helper()
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	remotetest.Eventually(t, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil || len(threads) == 0 {
			return fmt.Errorf("the threads of %d: %w", p.Pid, err)
		}
		for _, thread := range threads {
			if text, err := os.ReadFile(thread); err == nil && !strings.Contains(string(text), ") T ") {
				return fmt.Errorf("a thread runs: %s", text)
			}
		}
		return nil
	})
}

// The owner keeps the announced parameters until the next ones are announced, also if that takes long, so that workers
// can get them.
func TestAnnouncedParametersAreKept(t *testing.T) {
	site := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	owner := site.owner(t)
	opts := site.options(t, "trainer", owner)
	opts.LocalOnly = true
	trainer, err := rl.NewTrainer(ctx, opts)
	require.NoError(t, err)
	defer trainer.Close()
	available := func(version uint64) error {
		h, err := owner.Acquire(ctx, "rl/test", endpoint.AcquireOptions{Version: version})
		if err == nil {
			err = h.Close()
		}
		return err
	}
	publish(t, trainer, site.dev, 0)
	freed := func(version uint64) {
		t.Helper()
		remotetest.Eventually(t, func() error {
			if err := available(version); !errors.Is(err, endpoint.ErrNotFound) {
				return fmt.Errorf("the superseded version remains: %v", err)
			}
			return nil
		})
	}
	for version := uint64(1); version <= 2; version++ {
		pause(t, site.nats.cmd.Process) // the announcement waits
		sd := weights(t, site.dev, float32(version))
		published := make(chan error, 1)
		go func() {
			_, err := trainer.Publish(ctx, sd)
			published <- err
		}()
		remotetest.Eventually(t, func() error { return available(version + 1) })
		require.NoError(t, available(version), "the announced version")
		require.NoError(t, site.nats.cmd.Process.Signal(syscall.SIGCONT))
		require.NoError(t, <-published)
		require.NoError(t, sd.Close())
		freed(version)
	}

	// An announcement fails. The owner has the version, but workers know only the earlier one.
	sd := weights(t, site.dev, 9)
	pause(t, site.nats.cmd.Process)
	brief, end := context.WithTimeout(ctx, 500*time.Millisecond)
	defer end()
	_, err = trainer.Publish(brief, sd)
	require.Error(t, err)
	require.NoError(t, available(4))
	require.NoError(t, available(3), "the announced version")
	require.NoError(t, site.nats.cmd.Process.Signal(syscall.SIGCONT))
	_, err = trainer.Publish(ctx, sd)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	freed(3)
}
