package client_test

import (
	"context"
	"math/rand/v2"
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
