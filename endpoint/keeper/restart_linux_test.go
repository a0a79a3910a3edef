package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// owner serves with a keeper beside its socket. args may name another socket of the keeper.
func owner(ctx context.Context, socket string, args []string) error {
	store, err := connectKeeper(keeperOf(socket, args))
	if err != nil {
		return err
	}
	defer store.Close()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	s, err := newServer(socket, dev, store)
	if err != nil {
		return err
	}
	return s.Serve(ctx)
}

func keeperOf(socket string, args []string) string {
	if len(args) > 0 && args[0] != "" {
		return args[0]
	}
	return socket + ".keep"
}

func connectKeeper(socket string) (*keeper.Process, error) {
	return keeper.Connect(keeper.Options{Socket: socket, Command: []string{os.Args[0], "keep", socket}})
}

// start starts an owner with a keeper. Both end with the test.
func start(t testing.TB, args ...string) *endpointtest.Process {
	t.Helper()
	p := endpointtest.StartProcess(t, args...)
	store, err := connectKeeper(keeperOf(p.Socket, args))
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		_ = syscall.Kill(store.PID(), syscall.SIGKILL)
		store.Close()
	})
	return p
}

// newServer returns a server that keeps its versions.
func newServer(socket string, dev *host.Device, store endpoint.Store) (*endpoint.Server, error) {
	return endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Keep: store})
}

// user is a client with a device.
type user struct {
	*endpoint.Client
	t   testing.TB
	dev *host.Device
}

func newUser(t testing.TB, p *endpointtest.Process) user {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: p.Socket, Devices: []driver.Device{dev}, Wait: true})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return user{c, t, dev}
}

// publish publishes a model whose elements are the value.
func (u user) publish(name string, value int) (uint64, error) {
	sd, err := module.New(u.dev, []module.NamedSpec{
		{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{64, 32}},
		{Name: "b", DType: tensor.Float32, Shape: tensor.Shape{32}},
	})
	if err != nil {
		return 0, err
	}
	defer sd.Close()
	for _, x := range sd.All() {
		values, err := tensor.Data[float32](x)
		if err != nil {
			return 0, err
		}
		for i := range values {
			values[i] = float32(value)
		}
	}
	return u.Publish(u.t.Context(), name, sd, endpoint.PublishOptions{})
}

func (u user) mustPublish(name string, value int) uint64 {
	u.t.Helper()
	version, err := u.publish(name, value)
	require.NoError(u.t, err)
	return version
}

func (u user) acquire(name string, version uint64) *endpoint.Handle {
	u.t.Helper()
	h, err := u.Acquire(u.t.Context(), name, endpoint.AcquireOptions{Version: version})
	require.NoError(u.t, err)
	u.t.Cleanup(func() { h.Close() })
	return h
}

// value returns the value that all elements of a model hold.
func value(t testing.TB, sd *module.StateDict) int {
	t.Helper()
	first := float32(-1)
	for _, x := range sd.All() {
		values, err := tensor.Data[float32](x)
		require.NoError(t, err)
		for _, v := range values {
			if first < 0 {
				first = v
			}
			require.Equal(t, first, v)
		}
	}
	return int(first)
}

// inode returns the file behind the memory of a model.
func inode(t testing.TB, sd *module.StateDict) uint64 {
	t.Helper()
	require.Len(t, sd.Storages(), 1)
	h, err := sd.Storages()[0].Memory().Export()
	require.NoError(t, err)
	defer h.Close()
	info, err := h.File.Stat()
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

func leased(t testing.TB, handles ...*endpoint.Handle) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(handles, func(h *endpoint.Handle) bool { return !h.Leased() })
	}, 20*time.Second, time.Millisecond)
}

func TestKilledOwner(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	u.mustPublish("m", 1)
	old := u.acquire("m", 1)
	u.mustPublish("m", 2)
	current := u.acquire("m", 0)
	u.mustPublish("other", 7)
	u.mustPublish("gone", 8)
	require.NoError(t, u.Withdraw(t.Context(), "gone"))
	file := inode(t, current.StateDict())
	w, err := u.Watch(t.Context())
	require.NoError(t, err)
	defer w.Close()
	var mu sync.Mutex
	var events []string
	go func() {
		for e := range w.Events(t.Context()) {
			if e.Name != "" {
				mu.Lock()
				events = append(events, fmt.Sprint(e.Kind, " ", e.Name, e.Version))
				mu.Unlock()
			}
		}
	}()

	for round := range 3 {
		before := u.ServerID()
		p.Kill()
		require.Equal(t, 2, value(t, current.StateDict()))
		p.Restart()
		leased(t, old, current)
		require.NotEqual(t, before, u.ServerID())
		require.Equal(t, endpoint.Superseded, old.State())
		require.Equal(t, endpoint.Current, current.State())
		require.Equal(t, 1, value(t, old.StateDict()))
		again := u.acquire("m", 0)
		require.Equal(t, uint64(2), again.Version())
		require.Equal(t, 2, value(t, again.StateDict()))
		require.Equal(t, file, inode(t, again.StateDict()), "the same memory in round %d", round)
		require.Equal(t, 7, value(t, u.acquire("other", 0).StateDict()))
		_, err = u.Acquire(t.Context(), "gone", endpoint.AcquireOptions{})
		require.ErrorIs(t, err, endpoint.ErrNotFound)
	}
	info, err := u.Info(t.Context(), "other")
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), int(info.Versions[0].Publisher.PID), "the publisher is known")
	require.WithinDuration(t, time.Now(), info.Versions[0].PublishedAt, time.Minute)

	require.Equal(t, uint64(3), u.mustPublish("m", 3))
	require.Equal(t, uint64(2), u.mustPublish("gone", 9), "the number of a withdrawn name goes on")
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(events) >= 4 && slices.Contains(events, "published gone2")
	}, 20*time.Second, time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(events)
	require.Equal(t, []string{"published gone2", "published m2", "published m3", "published other1"}, events)
}

// Only the keeper has the memory when the next owner starts.
func TestKilledOwnerWithoutClients(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	u.mustPublish("m", 5)
	require.NoError(t, u.Client.Close())
	p.Kill()
	p.Restart()
	h := newUser(t, p).acquire("m", 0)
	require.Equal(t, 5, value(t, h.StateDict()))
	require.Equal(t, uint64(1), h.Version())
}

// Readers of superseded versions have some time to renew their leases. After that the memory is freed, and the keeper
// holds only what is served.
func TestSupersededVersionsEnd(t *testing.T) {
	t.Parallel() // it waits for ten seconds
	p := start(t)
	u := newUser(t, p)
	u.mustPublish("m", 1)
	old := u.acquire("m", 1)
	u.mustPublish("m", 2)
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	require.Len(t, contents(t, store), 3, "a journal and two versions")
	p.Kill()
	p.Restart()
	leased(t, old)
	require.NoError(t, old.Close())
	require.Eventually(t, func() bool { return len(contents(t, store)) == 2 }, 30*time.Second, 50*time.Millisecond)
}

func TestTwoOwnersOfOneKeeper(t *testing.T) {
	p := start(t)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	_, err = newServer(p.Socket+".2", dev, store)
	require.ErrorIs(t, err, endpoint.ErrInUse)
	require.ErrorContains(t, err, strconv.Itoa(p.PID()))
	newUser(t, p).mustPublish("m", 1)
}

// The keeper and the owner are killed one after the other: the owner has stored everything in a new keeper.
func TestKilledKeeperThenOwner(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	u.mustPublish("m", 4)
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	first := store.PID()
	end(t, first)
	require.Eventually(t, func() bool { return len(contents(t, store)) == 2 }, 20*time.Second, 10*time.Millisecond)
	p.Kill()
	p.Restart()
	require.Equal(t, 4, value(t, u.acquire("m", 0).StateDict()))
}

// A server in this process adopts its earlier versions, also after Close.
func TestAdopted(t *testing.T) {
	dir := t.TempDir()
	store := connect(t, dir)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	for round := range 3 {
		s, err := newServer(dir+"/s.sock", dev, store)
		require.NoError(t, err)
		want := []endpoint.AdoptedVersion{{Name: "m", Version: uint64(round), Current: true, Source: "file", SourceID: fmt.Sprint("id ", round)}}
		if round == 0 {
			want = want[:0]
		}
		require.Equal(t, want, s.Adopted())
		sd, err := module.New(dev, []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}})
		require.NoError(t, err)
		v, err := s.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Source: "file", SourceID: fmt.Sprint("id ", round+1)})
		require.NoError(t, err)
		require.Equal(t, uint64(round+1), v)
		require.NoError(t, sd.Close())
		require.NoError(t, s.Close())
	}
}

// Owners are killed while clients publish and withdraw. Every acknowledged change is there afterwards.
func TestAcknowledgedVersionsSurvive(t *testing.T) {
	cycles := 12
	if n, err := strconv.Atoi(os.Getenv("SHAREDTENSOR_KEEP_CYCLES")); err == nil {
		cycles = n
	}
	p := start(t)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	type state struct{ version, value uint64 }
	acknowledged := map[string]state{} // version 0 after a withdrawal
	next := 1
	for cycle := range cycles {
		u := newUser(t, p)
		for name, want := range acknowledged {
			if want.version == 0 {
				continue
			}
			h := u.acquire(name, 0)
			require.GreaterOrEqual(t, h.Version(), want.version, "%s in cycle %d", name, cycle)
			if h.Version() == want.version {
				require.Equal(t, int(want.value), value(t, h.StateDict()), "%s version %d in cycle %d", name, want.version, cycle)
			}
			require.NoError(t, h.Close())
		}
		killed := make(chan struct{})
		after := time.Duration(rng.IntN(30)) * time.Millisecond
		go func() {
			defer close(killed)
			time.Sleep(after)
			if rng.IntN(4) == 0 {
				_ = syscall.Kill(p.PID(), syscall.SIGSTOP)
			}
			_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		}()
		for i := 0; ; i++ {
			name := string(rune('a' + i%4))
			if i%7 == 6 {
				if err := u.Withdraw(t.Context(), name); err == nil {
					acknowledged[name] = state{}
				} else if !errors.Is(err, endpoint.ErrNotFound) {
					delete(acknowledged, name) // either is possible
					break
				}
				continue
			}
			version, err := u.publish(name, next)
			if err != nil {
				require.ErrorIs(t, err, endpoint.ErrUnavailable)
				if last := acknowledged[name]; last.version == 0 {
					delete(acknowledged, name)
				}
				break
			}
			require.Greater(t, version, acknowledged[name].version)
			acknowledged[name] = state{version, uint64(next)}
			next++
		}
		<-killed
		require.NoError(t, u.Client.Close())
		p.Restart()
	}
	t.Logf("%d cycles, %d publications acknowledged, %d names", cycles, next-1, len(slices.Collect(maps.Keys(acknowledged))))
}
