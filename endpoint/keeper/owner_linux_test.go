package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
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

// owner serves with a keeper beside its socket. args may name another socket of the keeper, and then the time for renewals.
func owner(ctx context.Context, socket string, args []string) error {
	var kept endpoint.Store
	if path, is := directoryArg(args); is {
		store, err := keeper.OpenDirectory(path)
		if err != nil {
			return err
		}
		kept = store
	} else if len(args) == 0 || args[0] != noKeeper {
		store, err := connectKeeper(keeperOf(socket, args))
		if err != nil {
			return err
		}
		defer store.Close()
		kept = store
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	opts := endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Keep: kept}
	if fault() == noDevice {
		opts.Devices = nil
	}
	if err := beginFault(); err != nil {
		return err
	}
	if len(args) > 1 {
		if opts.RenewalTime, err = time.ParseDuration(args[1]); err != nil {
			return err
		}
	}
	s, err := newOwner(opts)
	if err != nil {
		return err
	}
	return serveUpgradable(ctx, s)
}

// directoryArg returns the directory of an owner's arguments.
func directoryArg(args []string) (path string, is bool) {
	if len(args) == 0 {
		return "", false
	}
	return strings.CutPrefix(args[0], directory)
}

func keeperOf(socket string, args []string) string {
	if len(args) > 0 && args[0] != "" && args[0] != noKeeper {
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
	if _, is := directoryArg(args); is || len(args) > 0 && args[0] == noKeeper {
		return p
	}
	store, err := connectKeeper(keeperOf(p.Socket, args))
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		endStore(store)
	})
	return p
}

// endStore kills the keeper of a store, after the store can no longer start another one.
func endStore(store *keeper.Process) {
	store.Close()
	_ = syscall.Kill(store.PID(), syscall.SIGKILL)
}

// newServer returns a server that keeps its versions and has no readers.
func newServer(socket string, dev *host.Device, store endpoint.Store) (*endpoint.Server, error) {
	return endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Keep: store, RenewalTime: 100 * time.Millisecond})
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
	sd, err := u.model(value)
	if err != nil {
		return 0, err
	}
	defer sd.Close()
	return u.Publish(u.t.Context(), name, sd, endpoint.PublishOptions{})
}

// model returns a model whose elements are the value. The caller closes it.
func (u user) model(value int) (*module.StateDict, error) { return modelOf(u.dev, value) }

func modelOf(dev driver.Device, value int) (*module.StateDict, error) {
	sd, err := module.New(dev, []module.NamedSpec{
		{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{64, 32}},
		{Name: "b", DType: tensor.Float32, Shape: tensor.Shape{32}},
	})
	if err != nil {
		return nil, err
	}
	for _, x := range sd.All() {
		values, err := tensor.Data[float32](x)
		if err != nil {
			return nil, errors.Join(err, sd.Close())
		}
		for i := range values {
			values[i] = float32(value)
		}
	}
	return sd, nil
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
	got, err := valueOf(sd)
	require.NoError(t, err)
	return got
}

// valueOf returns the value that all elements of a model hold. It fails if they differ.
func valueOf(sd *module.StateDict) (int, error) {
	first := float32(-1)
	for name, x := range sd.All() {
		values, err := tensor.Data[float32](x)
		if err != nil {
			return 0, err
		}
		for i, v := range values {
			if first < 0 {
				first = v
			}
			if v != first {
				return 0, fmt.Errorf("element %d of %s is %v, the first one is %v", i, name, v, first)
			}
		}
	}
	return int(first), nil
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

// restart kills the owner, starts the next one, and waits until it has renewed the leases of the user.
func restart(t testing.TB, p *endpointtest.Process, u user, handles ...*endpoint.Handle) {
	t.Helper()
	before := u.ServerID()
	p.Kill()
	p.Restart()
	require.Eventually(t, func() bool { return u.ServerID() != before }, 20*time.Second, time.Millisecond)
	leased(t, handles...)
}

func leased(t testing.TB, handles ...*endpoint.Handle) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(handles, func(h *endpoint.Handle) bool { return !h.Leased() })
	}, 20*time.Second, time.Millisecond)
}
