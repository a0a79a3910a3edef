package session_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestInProcessOutlivesServer(t *testing.T) {
	drivertest.Leaks(t)
	s, c, dev, _ := inProcessPair(t, endpoint.ServerOptions{})
	ctx := context.Background()
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 1})
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", sd)
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 2})
	require.NoError(t, err)
	w, err := c.Watch(ctx, "m")
	require.NoError(t, err)
	next := func(kind endpoint.EventKind) {
		t.Helper()
		for {
			e, err := fixture.NextEvent(ctx, w)
			require.NoError(t, err)
			if e.Kind == kind {
				return
			}
		}
	}
	require.NoError(t, s.Shutdown(ctx))
	next(endpoint.EventOwnerLost)
	<-ref.Done()
	require.ErrorIs(t, ref.Err(), endpoint.ErrStale)
	require.Equal(t, []float32{2, 2}, fixture.Values(t, ref.Value()))
	require.NoError(t, (&fixture.Worker{Dev: dev}).Check(h, fixture.Model{Seed: 1}), "the memory stays")
	_, err = c.Ping(ctx)
	require.ErrorIs(t, err, endpoint.ErrUnavailable)

	again, err := endpoint.NewServer(endpoint.ServerOptions{Socket: s.Socket()})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- again.Serve(context.Background()) }()
	next(endpoint.EventOwnerBack)
	proctest.Eventually(t, fixture.WaitLimit, "the new owner is found", func() bool { return c.ServerID() == again.ID() })
	proctest.Eventually(t, fixture.WaitLimit, "the handle is an orphan", func() bool { return h.State() == endpoint.Orphaned })
	require.NoError(t, again.Close())
	require.ErrorIs(t, <-served, endpoint.ErrServerClosed)

	other := fixture.Start(t) // in another process, at the same path
	id := other.Serve(s.Socket())
	next(endpoint.EventOwnerBack)
	proctest.Eventually(t, fixture.WaitLimit, "the other process is found", func() bool { return c.ServerID() == id })
	require.NoError(t, ref.Close())
	require.NoError(t, h.Close())
	require.NoError(t, c.Close())
}

func TestInProcessWaitsForServe(t *testing.T) {
	drivertest.Leaks(t)
	socket := proctest.SocketPath(t)
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Limits: endpoint.Limits{Clients: 1}})
	require.NoError(t, err)
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = endpoint.Dial(short, endpoint.ClientOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	dialled := make(chan error, 1)
	var c *endpoint.Client
	go func() {
		var err error
		c, err = endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
		dialled <- err
	}()
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	require.NoError(t, <-dialled)
	_, err = endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrLimit)
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-served, endpoint.ErrServerClosed)
	require.NoError(t, c.Close())
	_, err = endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
}

// A server of this process is found by its socket file through any path; another file at the path is another server.
func TestInProcessSocketFile(t *testing.T) {
	s := fixture.Serve(t, endpoint.ServerOptions{})
	ctx := context.Background()
	link := filepath.Join(filepath.Dir(s.Socket()), "link.sock")
	require.NoError(t, os.Symlink(s.Socket(), link))
	files := drivertest.OpenFiles()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: link})
	require.NoError(t, err)
	require.Equal(t, files, drivertest.OpenFiles())
	require.Equal(t, s.ID(), c.ServerID())
	require.NoError(t, c.Close())
	c, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: link, OverSocket: true})
	require.NoError(t, err)
	require.Greater(t, drivertest.OpenFiles(), files)
	require.NoError(t, c.Close())

	require.NoError(t, os.Remove(s.Socket()))
	stranger, err := net.Listen("unix", s.Socket())
	require.NoError(t, err)
	defer stranger.Close()
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = endpoint.Dial(short, endpoint.ClientOptions{Socket: s.Socket()})
	require.ErrorIs(t, err, endpoint.ErrUnavailable, "it says nothing")
	far, err := stranger.Accept()
	require.NoError(t, err, "it was dialled")
	require.NoError(t, far.Close())
}

// Many clients make requests until the server shuts down.
func TestInProcessShutdownConcurrently(t *testing.T) {
	drivertest.Leaks(t)
	s, _, dev, counts := inProcessPair(t, endpoint.ServerOptions{})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 1})
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", sd)
	var all sync.WaitGroup
	var rounds atomic.Int64
	visit := func() error {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev)})
		if err != nil {
			return err
		}
		defer c.Close()
		w, err := c.Watch(ctx)
		if err != nil {
			return err
		}
		defer w.Close()
		h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
		if err != nil {
			return err
		}
		defer h.Close()
		ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 8})
		if err != nil {
			return err
		}
		defer ref.Close()
		if n, err := endpoint.Call[float64](ctx, c, "sum", fixture.ScaleIn{X: ref.Value()}); err != nil || n != 64 {
			return fmt.Errorf("the sum is %g: %w", n, err)
		}
		rounds.Add(1)
		return nil
	}
	for range 8 {
		all.Go(func() {
			for {
				if err := visit(); err != nil {
					if !errors.Is(err, endpoint.ErrUnavailable) && ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	proctest.Eventually(t, fixture.WaitLimit, "they have come and gone", func() bool { return rounds.Load() > 100 })
	require.NoError(t, s.Shutdown(ctx))
	stop() // they would repeat requests until one is answered
	all.Wait()
	require.Positive(t, counts.Get("model"))
}
