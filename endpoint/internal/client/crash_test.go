package client_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestClientKilledReleasesRefs(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m"})
	before := o.Count()
	for range 5 {
		c := fixture.Client(t, socket)
		c.Acquire(fixture.Acquisition{Name: "m", Key: "1"})
		c.Acquire(fixture.Acquisition{Name: "m", Key: "2"})
		require.Equal(t, 1, fixture.Holders(o))
		c.Kill()
		killed := time.Now()
		proctest.Eventually(t, fixture.WaitLimit, "the references are back", func() bool { return fixture.Holders(o) == 0 })
		// The product promises 100 ms; a test on a busy machine can only detect another order of magnitude.
		require.Less(t, time.Since(killed), fixture.Promptly)
	}
	proctest.Eventually(t, fixture.WaitLimit, "descriptors, mappings and goroutines are back", func() bool {
		now := o.Count()
		return now.Within(before)
	})
}

func TestClientKilledReleasesVersion(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m"})
	before := o.Count()
	c := fixture.Client(t, socket)
	c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	o.Publish(fixture.Model{Name: "m"})
	require.Len(t, o.Models()[0].Versions, 2)
	c.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "version 1 is freed", func() bool {
		return len(o.Models()[0].Versions) == 1
	})
	proctest.Eventually(t, fixture.WaitLimit, "its descriptor and mapping are gone", func() bool {
		now := o.Count()
		return now.Files <= before.Files && now.Mappings <= before.Mappings
	})
}

func TestServerKilledClientsReadOn(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 11, Bytes: 8 << 20})
	c := fixture.Client(t, socket)
	c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	c.Watch("w")
	require.Equal(t, endpoint.EventPublished, c.Next("w").Kind)

	o.Kill()
	require.Equal(t, endpoint.EventOwnerLost, c.Next("w").Kind)
	c.Check("h", fixture.Model{Seed: 11, Bytes: 8 << 20})
	a := c.Handle("h")
	require.Equal(t, "current", a.State)
	require.False(t, a.Leased)
	require.ErrorIs(t, c.PingError(), endpoint.ErrUnavailable)
	require.ErrorIs(t, c.AcquireError(fixture.Acquisition{Name: "m", Key: "x", Limit: 50 * time.Millisecond}), endpoint.ErrUnavailable)

	// Another owner replaces the dead one's socket file, and the client finds it.
	o2 := fixture.Start(t)
	o2.Serve(socket)
	o2.Publish(fixture.Model{Name: "m", Seed: 12})
	require.Equal(t, endpoint.EventOwnerBack, c.Next("w").Kind)
	require.Equal(t, endpoint.EventPublished, c.Next("w").Kind)
	proctest.Eventually(t, fixture.WaitLimit, "the handle has lost its owner", func() bool { return c.Handle("h").State == "orphaned" })
	c.Check("h", fixture.Model{Seed: 11, Bytes: 8 << 20})
	c.Acquire(fixture.Acquisition{Name: "m", Key: "h2"})
	c.Check("h2", fixture.Model{Seed: 12})
}

func TestClientPingWithoutServer(t *testing.T) {
	t.Parallel()
	c := fixture.Start(t)
	took, err := fixture.DialOp.Ask(c.Process, fixture.Dialing{Socket: proctest.SocketPath(t)})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.ErrorContains(t, err, "sharedtensor serve", "the error says what to do")
	require.Less(t, took, fixture.Promptly)
}

// What keeps a client from its owner is in the error, also after a wait, and in the log after some seconds.
func TestClientSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for socket, says := range map[string]string{
		filepath.Join(dir, "none"): "there is no such socket", file: "it is not a socket",
	} {
		_, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket})
		require.ErrorIs(t, err, endpoint.ErrUnavailable)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, socket)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		logged := make(chan string, 1)
		log := slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
			select {
			case logged <- string(line):
			default:
			}
			return len(line), nil
		}), nil))
		go func() { defer cancel(); line := <-logged; logged <- line }() // the wait ends when the log has a line
		_, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Wait: true, Logger: log})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, endpoint.ErrUnavailable)
		require.ErrorContains(t, err, says)
		require.Contains(t, <-logged, "no owner is reachable")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestClientDialWait(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	c := fixture.Start(t)
	require.ErrorIs(t, c.DialError(fixture.Dialing{Socket: socket, Wait: true, Limit: 50 * time.Millisecond}), context.DeadlineExceeded)
	for range fixture.Count(t, 300, 3000) { // the time may end at any moment of an attempt
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(200))*time.Microsecond)
		_, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Wait: true})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, endpoint.ErrUnavailable)
	}

	done := make(chan error, 1)
	go func() { done <- fixture.Attempt(c, fixture.DialOp, fixture.Dialing{Socket: socket, Wait: true}) }()
	o := fixture.Start(t)
	o.Serve(socket)
	require.NoError(t, <-done)
}
