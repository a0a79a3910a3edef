package keeper_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

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
		restart(t, p, u, old, current)
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

// Readers of superseded and withdrawn versions have some time to renew their leases. After that the memory is freed, and
// the keeper holds only what is served.
func TestSupersededVersionsEnd(t *testing.T) {
	t.Parallel()
	p := start(t, "", "1s")
	u := newUser(t, p)
	u.mustPublish("m", 1)
	old := u.acquire("m", 1)
	u.mustPublish("m", 2)
	u.mustPublish("gone", 3)
	withdrawn := u.acquire("gone", 0)
	require.NoError(t, u.Withdraw(t.Context(), "gone"))
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	require.Eventually(t, func() bool { return len(contents(t, store)) == 4 }, 20*time.Second, time.Millisecond, "a journal and three versions")
	restart(t, p, u)
	require.NoError(t, old.Close())
	require.NoError(t, withdrawn.Close())
	require.Eventually(t, func() bool { return len(contents(t, store)) == 2 }, 30*time.Second, 10*time.Millisecond)
	versions, _ := numbers(t, u, "m")
	require.Equal(t, []uint64{2}, versions)
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

// The next owner keeps superseded versions by the retention that their publisher has set, and the sources of a rollback.
func TestRetentionSurvives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := connect(t, dir)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	retain := endpoint.Retention{Versions: 2}
	for round := range 3 {
		s, err := newServer(dir+"/s.sock", dev, store)
		require.NoError(t, err)
		go func() { _ = s.Serve(t.Context()) }()
		if round > 0 {
			var adopted []string
			for _, a := range s.Adopted() {
				adopted = append(adopted, fmt.Sprintf("%d %v %s", a.Version, a.Current, a.SourceID))
			}
			want := [][]string{{"1 false file 1", "2 false file 2", "3 true file 2"}, {"2 false file 2", "3 false file 2", "4 true file 4"}}
			require.Equal(t, want[round-1], adopted)
		}
		publish := func(opts endpoint.PublishOptions) {
			sd, err := module.New(dev, []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}})
			require.NoError(t, err)
			defer sd.Close()
			_, err = s.Publish(t.Context(), "m", sd, opts)
			require.NoError(t, err)
		}
		switch round {
		case 0:
			publish(endpoint.PublishOptions{SourceID: "file 1", Retain: &retain})
			publish(endpoint.PublishOptions{SourceID: "file 2"})
			v, err := s.Rollback(t.Context(), "m", 1)
			require.NoError(t, err)
			require.EqualValues(t, 3, v)
		case 1:
			publish(endpoint.PublishOptions{SourceID: "file 4"})
			var left []endpoint.VersionInfo
			require.Eventually(t, func() bool { // readers had time to renew their leases
				list, err := s.List(t.Context())
				require.NoError(t, err)
				left = list[0].Versions
				return len(left) < 4
			}, 30*time.Second, 50*time.Millisecond)
			require.Len(t, left, 3, "two superseded versions are retained")
			require.Eventually(t, func() bool { // the journal has recorded it too, before the server closes
				names, err := store.Names()
				require.NoError(t, err)
				return len(names) == 4
			}, 30*time.Second, 10*time.Millisecond)
		}
		require.NoError(t, s.Close())
	}
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
		want := []endpoint.AdoptedVersion{}
		for n := range round { // readers of superseded versions have had no time to renew their leases
			v := endpoint.AdoptedVersion{Name: "m", Version: uint64(n + 1), Source: "file", SourceID: fmt.Sprint("id ", n+1)}
			v.Current = n+1 == round
			want = append(want, v)
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
	t.Run("keeper", func(t *testing.T) { testAcknowledged(t, start(t), cycles) })
	t.Run("directory", func(t *testing.T) {
		_, path := directoryOf(t)
		testAcknowledged(t, start(t, directory+path), cycles)
	})
}

func testAcknowledged(t *testing.T, p *endpointtest.Process, cycles int) {
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

// If the keeper and the owner are killed at once, the memory is lost. The next owner reports that, its numbers start at 1,
// and readers keep their mappings.
func TestKilledKeeperAndOwner(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	u.mustPublish("m", 1)
	u.mustPublish("m", 2)
	h := u.acquire("m", 0)
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	require.Zero(t, store.LostPID())
	keeperPID := store.PID()
	require.NoError(t, store.Close())
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGSTOP)) // it cannot start another keeper
	require.NoError(t, syscall.Kill(keeperPID, syscall.SIGKILL))
	p.Kill()
	require.Eventually(t, func() bool { return ended(keeperPID) }, 10*time.Second, time.Millisecond)
	var log strings.Builder
	again, err := keeper.Connect(keeper.Options{
		Socket: keeperOf(p.Socket, nil), Command: []string{os.Args[0], "keep", keeperOf(p.Socket, nil)},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	defer endStore(again)
	require.Equal(t, keeperPID, again.LostPID())
	require.Contains(t, log.String(), "the versions that it held are lost")
	p.Restart()
	require.Eventually(t, func() bool { return h.State() == endpoint.Orphaned }, 20*time.Second, time.Millisecond)
	require.Equal(t, 2, value(t, h.StateDict()))
	require.Equal(t, uint64(1), u.mustPublish("m", 3))
}

// The next owner has the digests that an earlier one has computed, and the handles of withdrawn versions stay valid.
func TestKilledOwnerOfWithdrawnVersion(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	sd, err := u.model(1)
	require.NoError(t, err)
	_, err = u.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Digests: true})
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	want, err := u.Client.Digests(t.Context(), "m", 1)
	require.NoError(t, err)
	u.mustPublish("gone", 2)
	h := u.acquire("gone", 0)
	require.NoError(t, u.Withdraw(t.Context(), "gone"))
	for range 2 {
		restart(t, p, u, h)
		require.Eventually(t, func() bool { return h.State() == endpoint.Withdrawn }, 20*time.Second, 5*time.Millisecond, "the handle knows that its version is withdrawn")
		info, err := u.Info(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, endpoint.DigestComputed, info.Versions[0].DigestState, "it is known at once")
		got, err := u.Client.Digests(t.Context(), "m", 1)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	list, err := u.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
}

// A watch of tasks reports each task that its owner has lost, once.
func TestKilledOwnerLosesTasks(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	done, err := u.Submit(t.Context(), "run", 1)
	require.NoError(t, err)
	_, err = done.Wait(t.Context())
	require.NoError(t, err)
	running, err := u.Submit(t.Context(), "sleep", time.Hour)
	require.NoError(t, err)
	events, killed := []string{}, false
	for e, err := range u.WatchTasks(t.Context(), endpoint.TaskFilter{}) {
		if err != nil {
			require.ErrorIs(t, err, endpoint.ErrUnavailable)
			break
		}
		if e.Kind == endpoint.TaskLost {
			events = append(events, e.Task.ID)
			continue
		}
		if e.Task.ID == running.ID && e.Task.State == endpoint.TaskRunning && !killed {
			killed = true
			p.Kill()
		}
	}
	require.Equal(t, []string{running.ID}, events)
	p.Restart()
	_, err = running.Wait(t.Context())
	require.ErrorIs(t, err, task.ErrNotFound)
}
