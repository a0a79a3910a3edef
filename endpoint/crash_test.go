package endpoint_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// holders returns the number of sessions that hold the first version that the owner lists.
func holders(o *child) int {
	models := o.models()
	if len(models) == 0 || len(models[0].Versions) == 0 {
		return 0
	}
	return len(models[0].Versions[0].Holders)
}

func TestClientKilledReleasesRefs(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m"})
	before := o.count()
	for range 5 {
		c := client(t, socket)
		c.acquire(acquisition{Name: "m", Key: "1"})
		c.acquire(acquisition{Name: "m", Key: "2"})
		require.Equal(t, 1, holders(o))
		c.Kill()
		killed := time.Now()
		proctest.Eventually(t, waitLimit, "the references are back", func() bool { return holders(o) == 0 })
		// The product promises 100 ms; a test on a busy machine can only detect another order of magnitude.
		require.Less(t, time.Since(killed), promptly)
	}
	proctest.Eventually(t, waitLimit, "descriptors, mappings and goroutines are back", func() bool {
		now := o.count()
		return now.Within(before)
	})
}

func TestClientKilledReleasesVersion(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m"})
	before := o.count()
	c := client(t, socket)
	c.acquire(acquisition{Name: "m", Key: "h"})
	o.publish(model{Name: "m"})
	require.Len(t, o.models()[0].Versions, 2)
	c.Kill()
	proctest.Eventually(t, waitLimit, "version 1 is freed", func() bool {
		return len(o.models()[0].Versions) == 1
	})
	proctest.Eventually(t, waitLimit, "its descriptor and mapping are gone", func() bool {
		now := o.count()
		return now.Files <= before.Files && now.Mappings <= before.Mappings
	})
}

func TestServerKilledClientsReadOn(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 11, Bytes: 8 << 20})
	c := client(t, socket)
	c.acquire(acquisition{Name: "m", Key: "h"})
	c.watch("w")
	require.Equal(t, endpoint.EventPublished, c.next("w").Kind)

	o.Kill()
	require.Equal(t, endpoint.EventOwnerLost, c.next("w").Kind)
	c.check("h", model{Seed: 11, Bytes: 8 << 20})
	a := c.handle("h")
	require.Equal(t, "current", a.State)
	require.False(t, a.Leased)
	require.ErrorIs(t, c.pingError(), endpoint.ErrUnavailable)
	require.ErrorIs(t, c.acquireError(acquisition{Name: "m", Key: "x", Limit: 50 * time.Millisecond}), endpoint.ErrUnavailable)

	// Another owner replaces the dead one's socket file, and the client finds it.
	o2 := start(t)
	o2.serve(socket)
	o2.publish(model{Name: "m", Seed: 12})
	require.Equal(t, endpoint.EventOwnerBack, c.next("w").Kind)
	require.Equal(t, endpoint.EventPublished, c.next("w").Kind)
	proctest.Eventually(t, waitLimit, "the handle has lost its owner", func() bool { return c.handle("h").State == "orphaned" })
	c.check("h", model{Seed: 11, Bytes: 8 << 20})
	c.acquire(acquisition{Name: "m", Key: "h2"})
	c.check("h2", model{Seed: 12})
}

func TestClientPingWithoutServer(t *testing.T) {
	t.Parallel()
	c := start(t)
	took, err := dialOp.Ask(c.Process, dialing{Socket: proctest.SocketPath(t)})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
	require.ErrorContains(t, err, "sharedtensor serve", "the error says what to do")
	require.Less(t, took, promptly)
}

func TestClientDialWait(t *testing.T) {
	t.Parallel()
	socket := proctest.SocketPath(t)
	c := start(t)
	require.ErrorIs(t, c.dialError(dialing{Socket: socket, Wait: true, Limit: 50 * time.Millisecond}), context.DeadlineExceeded)
	for range count(t, 300, 3000) { // the time may end at any moment of an attempt
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(200))*time.Microsecond)
		_, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Wait: true})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, endpoint.ErrUnavailable)
	}

	done := make(chan error, 1)
	go func() { done <- attempt(c, dialOp, dialing{Socket: socket, Wait: true}) }()
	o := start(t)
	o.serve(socket)
	require.NoError(t, <-done)
}
