package endpointtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestMain(m *testing.M) {
	endpointtest.RunOwner(owner)
	os.Exit(m.Run())
}

// owner publishes one value as model "m" and serves it.
func owner(ctx context.Context, socket string, args []string) error {
	if len(args) != 1 {
		return errors.New("an owner takes one argument")
	}
	value, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	defer server.Close()
	sd := module.NewStateDict()
	x, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{float32(value)})
	if err != nil {
		return err
	}
	if err := sd.Set("x", x); err != nil {
		return err
	}
	if _, err := server.Publish(ctx, "m", sd, endpoint.PublishOptions{}); err != nil {
		return err
	}
	return server.Serve(ctx)
}

// acquire returns a handle on the model and a client, which the test's cleanup closes.
func acquire(t *testing.T, p *endpointtest.Process) (*endpoint.Client, *endpoint.Handle) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: p.Socket, Devices: []driver.Device{dev}, Wait: true})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { h.Close() })
	return c, h
}

// A client keeps its version when the owner is killed, and reads the version of the restarted owner.
func TestProcessRestart(t *testing.T) {
	endpointtest.Leaks(t)
	p := endpointtest.StartProcess(t, "7")
	first := p.PID()
	require.NotEqual(t, os.Getpid(), first)
	c, h := acquire(t, p)
	value := func(h *endpoint.Handle) float32 {
		x, ok := h.StateDict().Get("x")
		require.True(t, ok)
		v, err := tensor.Item[float32](x)
		require.NoError(t, err)
		return v
	}
	require.EqualValues(t, 7, value(h))

	p.Kill()
	require.Zero(t, p.PID())
	require.EqualValues(t, 7, value(h), "the memory outlives the owner")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	p.Kill() // no effect

	p.Restart()
	require.NotEqual(t, first, p.PID())
	again, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer again.Close()
	require.NotEqual(t, h.ServerID(), again.ServerID())
	require.EqualValues(t, 7, value(again))

	running := p.PID()
	p.Restart()
	require.NotEqual(t, running, p.PID(), "a running process is killed first")
}

// Requests without effects wait for the next owner, also if they were in flight when the owner was killed. A request is
// repeated only once, because it may be the cause of the owner's end. Every loop therefore advances before the next kill.
func TestRequestsSurviveKilledOwners(t *testing.T) {
	endpointtest.Leaks(t)
	p := endpointtest.StartProcess(t, "7")
	dev, err := host.Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	c, err := endpoint.NewClient(endpoint.ClientOptions{Socket: p.Socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ending := make(chan struct{})
	var loops sync.WaitGroup
	made := map[string]*atomic.Int64{}
	for name, request := range map[string]func() error{
		"list":      func() error { _, err := c.List(ctx); return err },
		"info":      func() error { _, err := c.Info(ctx, "m"); return err },
		"manifest":  func() error { _, err := c.Manifest(ctx, "m", 0); return err },
		"endpoints": func() error { _, err := c.Endpoints(ctx); return err },
		"tasks":     func() error { _, err := c.Tasks(ctx, endpoint.TaskFilter{}); return err },
		"objects":   func() error { _, err := c.Objects(ctx); return err },
		"digests": func() error {
			if _, err := c.Digests(ctx, "m", 0); !errors.Is(err, endpoint.ErrNotFound) { // none are computed
				return fmt.Errorf("digests: %w", err)
			}
			return nil
		},
		"acquire": func() error {
			h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
			if err != nil {
				return err
			}
			return h.Close()
		},
		"watch": func() error {
			w, err := c.Watch(ctx, "m")
			if err != nil {
				return err
			}
			return w.Close()
		},
	} {
		count := new(atomic.Int64)
		made[name] = count
		loops.Go(func() {
			for {
				select {
				case <-ending:
					return
				default:
				}
				if err := request(); !assert.NoError(t, err, name) {
					return
				}
				count.Add(1)
			}
		})
	}
	for range 8 {
		time.Sleep(20 * time.Millisecond)
		p.Kill()
		time.Sleep(5 * time.Millisecond)
		p.Restart()
		for _, count := range made {
			for n := count.Load(); count.Load() == n && !t.Failed(); {
				time.Sleep(time.Millisecond)
			}
		}
	}
	close(ending)
	loops.Wait()
	for name, count := range made {
		require.NotZero(t, count.Load(), name)
	}
}

// fakeT records the failure of a test.
type fakeT struct {
	testing.TB
	failed   bool
	cleanups []func()
}

func (f *fakeT) Helper()               {}
func (f *fakeT) Cleanup(do func())     { f.cleanups = append(f.cleanups, do) }
func (f *fakeT) Errorf(string, ...any) { f.failed = true }
func (f *fakeT) Fatalf(string, ...any) { f.failed = true; panic(f) }

// finish runs the cleanups in the order of a test.
func (f *fakeT) finish() {
	for len(f.cleanups) > 0 {
		last := len(f.cleanups) - 1
		do := f.cleanups[last]
		f.cleanups = f.cleanups[:last]
		do()
	}
}

// An owner that fails to start fails the test at once.
func TestProcessFails(t *testing.T) {
	fake := &fakeT{TB: t}
	defer fake.finish()
	require.Panics(t, func() { endpointtest.StartProcess(fake) })
	require.True(t, fake.failed)
}
