package keeper_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// serveKept serves with a store and a usual time for renewals.
func serveKept(t testing.TB, socket string, dev *host.Device, store endpoint.Store, before func(s *endpoint.Server)) *endpoint.Server {
	t.Helper()
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Keep: store})
	require.NoError(t, err)
	before(s)
	go func() { _ = s.Serve(t.Context()) }()
	t.Cleanup(func() { s.Close() })
	return s
}

func mustPublish(t testing.TB, s *endpoint.Server, dev *host.Device, name string, value int) {
	t.Helper()
	sd, err := modelOf(dev, value)
	require.NoError(t, err)
	defer sd.Close()
	_, err = s.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, err)
}

// An owner that stops leaves superseded and withdrawn versions that clients hold to the next one. So do their leases of a
// version that the next owner replaces before they have connected.
func TestStoppedOwnerLeavesHeldVersions(t *testing.T) {
	for how, stop := range map[string]func(s *endpoint.Server) error{
		"shutdown": func(s *endpoint.Server) error { return s.Shutdown(t.Context()) },
		"close":    (*endpoint.Server).Close,
	} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			socket, store := filepath.Join(dir, "s.sock"), connect(t, dir)
			dev, err := host.Open()
			require.NoError(t, err)
			defer dev.Close()
			s := serveKept(t, socket, dev, store, func(s *endpoint.Server) {
				mustPublish(t, s, dev, "m", 1)
				mustPublish(t, s, dev, "gone", 2)
			})
			c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true})
			require.NoError(t, err)
			defer c.Close()
			u := user{c, t, dev}
			old, gone := u.acquire("m", 0), u.acquire("gone", 0)
			mustPublish(t, s, dev, "m", 3)
			current := u.acquire("m", 0)
			require.NoError(t, s.Withdraw(t.Context(), "gone"))
			require.NoError(t, stop(s))

			s = serveKept(t, socket, dev, store, func(s *endpoint.Server) {
				mustPublish(t, s, dev, "m", 4) // before the client has connected again
			})
			leased(t, old, gone, current)
			// The first owner may have stopped before it sent the event; then the next one sends it after it has renewed the lease.
			require.Eventually(t, func() bool { return gone.State() == endpoint.Withdrawn }, 30*time.Second, time.Millisecond)
			require.Eventually(t, func() bool { return current.State() == endpoint.Superseded }, 10*time.Second, time.Millisecond)
			info, err := s.List(t.Context())
			require.NoError(t, err)
			require.Len(t, info[1].Versions, 3)
			for h, want := range map[*endpoint.Handle]int{old: 1, gone: 2, current: 3} {
				require.Equal(t, want, value(t, h.StateDict()))
			}
		})
	}
}

// failingStore refuses descriptors while fails is set.
type failingStore struct {
	endpoint.Store
	mu    sync.Mutex
	fails bool
}

func (s *failingStore) set(fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = fails
}

func (s *failingStore) Put(name string, f *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return errors.New("the store refuses")
	}
	return s.Store.Put(name, f)
}

// A failed handover leaves an owner that keeps its versions again as soon as the store accepts them.
func TestFailedHandoverToStoreThatRefuses(t *testing.T) {
	dir := t.TempDir()
	socket, store := filepath.Join(dir, "s.sock"), &failingStore{Store: connect(t, dir)}
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	s := serveKept(t, socket, dev, store, func(s *endpoint.Server) { mustPublish(t, s, dev, "m", 1) })
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Wait: true})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, os.WriteFile(brokenFile(socket), []byte("adopted"), 0o600))
	next := exec.Command(os.Args[0], filepath.Join(dir, "k.sock"))
	next.Env = append(os.Environ(), "SHARED_TENSOR_TEST_OWNER="+socket)
	store.set(true)
	require.Error(t, s.Handover(t.Context(), endpoint.HandoverOptions{Command: next}))
	sd, err := modelOf(dev, 2)
	require.NoError(t, err)
	defer sd.Close()
	_, err = s.Publish(t.Context(), "m", sd, endpoint.PublishOptions{})
	require.ErrorContains(t, err, "the store refuses")
	store.set(false)
	mustPublish(t, s, dev, "m", 3)
	require.NoError(t, s.Close())
	s = serveKept(t, socket, dev, store, func(*endpoint.Server) {})
	require.Len(t, s.Adopted(), 1)
	require.EqualValues(t, 2, s.Adopted()[0].Version)
}

// A state dict that was closed cannot be published, although another reference holds its memory.
func TestClosedStateDictIsNotPublished(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	other, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Devices: []driver.Device{u.dev}})
	require.NoError(t, err)
	defer other.Close()
	sd, err := u.model(1)
	require.NoError(t, err)
	held := sd.Alias()
	defer held.Close()
	require.NoError(t, sd.Close())
	mustPublish(t, other, u.dev, "m", 7)
	for what, publish := range map[string]func(name string) error{
		"client": func(name string) error {
			_, err := u.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
			return err
		},
		"server": func(name string) error {
			_, err := other.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
			return err
		},
		"writer": func(name string) error {
			w, err := u.NewVersion(t.Context(), name, []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}})
			require.NoError(t, err)
			of := w.StateDict().Alias()
			defer of.Close()
			require.NoError(t, w.StateDict().Close())
			_, err = w.Commit(t.Context(), endpoint.PublishOptions{})
			return err
		},
	} {
		require.ErrorIs(t, publish("m"), endpoint.ErrClosed, what)
	}
	list, err := other.List(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, list[0].Current)
	list, err = u.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
}
