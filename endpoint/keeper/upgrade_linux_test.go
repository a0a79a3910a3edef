package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
)

// noKeeper is the argument of an owner that keeps nothing.
const noKeeper = "none"

// ranFile is the file beside a socket to which the endpoint "run" appends its arguments.
func ranFile(socket string) string { return socket + ".ran" }

// brokenFile is a file beside a socket with which a successor fails: its text is the moment.
func brokenFile(socket string) string { return socket + ".broken" }

// broken returns an error, or does not return, if a successor is to fail at the moment.
func broken(socket, moment string) error {
	if text, err := os.ReadFile(brokenFile(socket)); err == nil && string(text) == moment && endpoint.Inherited() == socket {
		return errors.New("broken on purpose")
	}
	return nil
}

// functions are the endpoints of an owner. server returns the owner's server.
func functions(socket string, server func() *endpoint.Server) (*endpoint.Registry, error) {
	ran, err := os.OpenFile(ranFile(socket), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := endpoint.NewRegistry()
	return r, errors.Join(
		registerJobs(r, server, ran),
		endpoint.Register(r, "run", func(_ context.Context, id int) (int, error) {
			_, err := fmt.Fprintln(ran, id)
			return id, err
		}),
		endpoint.Register(r, "sleep", func(_ context.Context, d time.Duration) (int, error) {
			_, err := fmt.Fprintln(ran, "sleep")
			time.Sleep(d)
			return os.Getpid(), err
		}))
}

// serveUpgradable serves until ctx ends, SIGTERM arrives or a successor has replaced the server. SIGUSR2 starts one.
func serveUpgradable(ctx context.Context, s *endpoint.Server) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	upgrade := make(chan os.Signal, 8)
	signal.Notify(upgrade, syscall.SIGUSR2)
	replaced := make(chan error, 1)
	go func() {
		for range upgrade {
			limited, cancel := context.WithTimeout(ctx, time.Minute)
			served := false
			err := s.Handover(limited, endpoint.HandoverOptions{Drain: time.Minute, Serving: func(int) { served = true }})
			cancel()
			if served {
				replaced <- err
				return
			}
			fmt.Fprintln(os.Stderr, err)
			_ = os.WriteFile(s.Socket()+".failed", []byte(err.Error()), 0o600)
		}
	}()
	err := s.Serve(ctx)
	if errors.Is(err, endpoint.ErrServerClosed) {
		return <-replaced
	}
	return err
}

// ownerPID returns the process that serves.
func ownerPID(t testing.TB, u user) int {
	t.Helper()
	info, err := u.ServerInfo(t.Context())
	require.NoError(t, err)
	return int(info.PID)
}

// upgradeOwner upgrades the owner and waits until another process serves.
func upgradeOwner(t testing.TB, u user, wait bool) {
	t.Helper()
	before := ownerPID(t, u)
	require.NoError(t, syscall.Kill(before, syscall.SIGUSR2))
	require.Eventually(t, func() bool { return ownerPID(t, u) != before }, time.Minute, time.Millisecond)
	if wait {
		require.Eventually(t, func() bool { return ended(before) }, time.Minute, time.Millisecond, "the old process ends")
	}
}

// ended reports whether a process has ended and has released its locks and sockets. A process whose parent has not waited
// for it has ended too, when its other threads have.
func ended(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || !strings.Contains(string(text), ") Z ") {
		return err != nil
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || len(threads) <= 1
}

// startUpgradable starts an owner whose successors end with the test too.
func startUpgradable(t testing.TB, args ...string) (*endpointtest.Process, user) {
	t.Helper()
	p := start(t, args...)
	u := newUser(t, p)
	t.Cleanup(func() { // before the clean-up of start, which waits for the end of all processes
		if info, err := u.ServerInfo(context.Background()); err == nil {
			_ = syscall.Kill(int(info.PID), syscall.SIGKILL)
		}
	})
	return p, u
}

// Clients call without a deadline at 1,000 calls/s and connect anew, while the owner is replaced repeatedly. Every connection attempt succeeds, every call returns once, and every function runs once.
func TestUpgradeLosesNoCall(t *testing.T) {
	calls, every := 2000, 500*time.Millisecond
	if n, err := strconv.Atoi(os.Getenv("SHAREDTENSOR_UPGRADE_CALLS")); err == nil {
		calls, every = n, 2*time.Second
	}
	for _, keeps := range []string{noKeeper, ""} {
		t.Run("keeper "+keeps, func(t *testing.T) { testUpgrades(t, calls, every, keeps) })
	}
}

func testUpgrades(t *testing.T, calls int, every time.Duration, keeps string) {
	const callers, rate = 8, 1000
	p, u := startUpgradable(t, keeps)
	u.mustPublish("m", 1)
	current := u.acquire("m", 0)
	file := inode(t, current.StateDict())
	var gap longestGap
	gap.answered()
	var next, failed, connected, published atomic.Int64
	done := make(chan struct{})
	var work, background sync.WaitGroup
	report := func(what string, err error) {
		failed.Add(1)
		t.Errorf("%s: %v", what, err)
	}
	for range callers {
		c := newUser(t, p)
		work.Go(func() {
			pace := time.NewTicker(time.Second * callers / rate)
			defer pace.Stop()
			for range pace.C {
				id := int(next.Add(1))
				if id > calls {
					return
				}
				got, err := endpoint.Call[int](t.Context(), c, "run", id)
				if err != nil || got != id {
					report(fmt.Sprint("call ", id), err)
				}
				gap.answered()
			}
		})
	}
	until := func(pause time.Duration, what string, do func() error) {
		background.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(pause):
				}
				if err := do(); err != nil {
					report(what, err)
				}
			}
		})
	}
	until(5*time.Millisecond, "connect", func() error {
		c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: p.Socket})
		if err != nil {
			return err
		}
		connected.Add(1)
		return c.Close()
	})
	until(20*time.Millisecond, "publish", func() error {
		_, err := u.publish("other", int(published.Add(1)))
		return err
	})
	var upgrades int
	replaced := time.NewTicker(every)
	defer replaced.Stop()
	ended := make(chan struct{})
	go func() { work.Wait(); close(ended) }()
	watcher := newUser(t, p)
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-replaced.C:
			upgradeOwner(t, watcher, false)
			upgrades++
		}
	}
	close(done)
	background.Wait()
	require.Positive(t, upgrades)
	leased(t, current)
	require.Equal(t, endpoint.Current, current.State())
	require.Equal(t, file, inode(t, u.acquire("m", 0).StateDict()), "the same memory")
	require.Equal(t, int(published.Load()), value(t, u.acquire("other", 0).StateDict()))
	ran, err := os.ReadFile(ranFile(p.Socket))
	require.NoError(t, err)
	ids := strings.Fields(string(ran))
	slices.Sort(ids)
	require.Len(t, ids, calls, "each function ran once")
	require.Len(t, slices.Compact(ids), calls, "each function ran once")
	t.Logf("%d calls, %d connections and %d publications during %d upgrades: %d failed; longest time without an answer %v",
		calls, connected.Load(), published.Load(), upgrades, failed.Load(), gap.longest())
}

// longestGap measures the longest time between two answers.
type longestGap struct {
	mu   sync.Mutex
	last time.Time
	gap  time.Duration
}

func (g *longestGap) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !g.last.IsZero() {
		g.gap = max(g.gap, now.Sub(g.last))
	}
	g.last = now
}

func (g *longestGap) longest() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gap
}

// The successor has the versions, also withdrawn ones with readers, their numbers, digests and leases. Watchers receive
// no event twice. The old process ends after its calls.
func TestUpgrade(t *testing.T) {
	for _, keeps := range []string{noKeeper, ""} {
		t.Run("keeper "+keeps, func(t *testing.T) {
			p, u := startUpgradable(t, keeps)
			u.mustPublish("m", 1)
			old := u.acquire("m", 1)
			u.mustPublish("m", 2)
			current := u.acquire("m", 0)
			u.mustPublish("gone", 3)
			withdrawn := u.acquire("gone", 0)
			require.NoError(t, u.Withdraw(t.Context(), "gone"))
			u.mustPublish("freed", 4)
			require.NoError(t, u.Withdraw(t.Context(), "freed"))
			running := make(chan int, 1)
			caller := newUser(t, p)
			first := ownerPID(t, u)
			go func() {
				pid, _ := endpoint.Call[int](t.Context(), caller, "sleep", 700*time.Millisecond)
				running <- pid
			}()
			require.Eventually(t, func() bool {
				text, err := os.ReadFile(ranFile(p.Socket))
				return err == nil && string(text) == "sleep\n"
			}, 10*time.Second, time.Millisecond)
			for range 2 {
				upgradeOwner(t, u, true)
				leased(t, old, current, withdrawn)
				require.Equal(t, endpoint.Superseded, old.State())
				require.Equal(t, endpoint.Current, current.State())
				require.Equal(t, endpoint.Withdrawn, withdrawn.State())
				require.Equal(t, 3, value(t, withdrawn.StateDict()))
				_, err := newUser(t, p).Acquire(t.Context(), "gone", endpoint.AcquireOptions{})
				require.ErrorIs(t, err, endpoint.ErrNotFound)
			}
			require.Equal(t, first, <-running, "a call ends where it began")
			require.NoError(t, withdrawn.Close())
			require.Equal(t, uint64(3), u.mustPublish("m", 5))
			require.Equal(t, uint64(2), u.mustPublish("gone", 6))
			require.Equal(t, uint64(2), u.mustPublish("freed", 7))
			if keeps == "" { // the successor keeps them as its predecessor did
				pid := ownerPID(t, u)
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				p.Restart()
				require.Equal(t, 5, value(t, newUser(t, p).acquire("m", 0).StateDict()))
				leased(t, current)
			}
		})
	}
}

// A successor that fails before it serves leaves the server unchanged at each of these moments.
func TestUpgradeFails(t *testing.T) {
	for _, moment := range []string{"start", "adopted", "killed"} {
		t.Run(moment, func(t *testing.T) {
			p, u := startUpgradable(t)
			u.mustPublish("m", 1)
			h := u.acquire("m", 0)
			pid := ownerPID(t, u)
			require.NoError(t, os.WriteFile(brokenFile(p.Socket), []byte(moment), 0o600))
			require.NoError(t, syscall.Kill(pid, syscall.SIGUSR2))
			require.Eventually(t, func() bool {
				_, err := os.Stat(p.Socket + ".failed")
				return err == nil
			}, 20*time.Second, time.Millisecond)
			require.Equal(t, pid, ownerPID(t, u))
			require.True(t, h.Leased())
			require.Equal(t, uint64(2), u.mustPublish("m", 2))
			require.Equal(t, uint64(1), u.mustPublish("n", 3))
			require.NoError(t, os.Remove(brokenFile(p.Socket)))
			upgradeOwner(t, u, true)
			require.Equal(t, 2, value(t, u.acquire("m", 0).StateDict()))
			require.NoError(t, syscall.Kill(ownerPID(t, u), syscall.SIGKILL))
			p.Restart()
			require.Equal(t, 2, value(t, newUser(t, p).acquire("m", 0).StateDict()))
			require.Equal(t, 3, value(t, newUser(t, p).acquire("n", 0).StateDict()))
		})
	}
}

// newOwner returns the server of an owner process with its functions.
func newOwner(opts endpoint.ServerOptions) (*endpoint.Server, error) {
	socket := opts.Socket
	var s *endpoint.Server
	registry, err := functions(socket, func() *endpoint.Server { return s })
	if err != nil {
		return nil, err
	}
	if err := broken(socket, "start"); err != nil {
		return nil, err
	}
	opts.Registry = registry
	failing, killed := broken(socket, "adopted"), broken(socket, "killed")
	opts.Offers = endpoint.AllowOffers
	s, err = endpoint.NewServer(opts)
	switch {
	case err != nil:
		return nil, err
	case failing != nil:
		return nil, errors.Join(failing, s.Close())
	case killed != nil:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return s, nil
}
