package endpoint_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/endpointtest"
)

func TestClientAcquireSharesMemory(t *testing.T) {
	o, socket := owner(t)
	require.EqualValues(t, 1, o.publish(model{Name: "m", Seed: 7}))
	for range 3 {
		c := client(t, socket)
		require.EqualValues(t, 1, c.acquire(acquisition{Name: "m", Key: "h"}).Version)
		c.check("h", model{Seed: 7})
	}
	require.Len(t, o.models()[0].Versions[0].Holders, 3)
}

func TestClientAcquireKeepsOldVersion(t *testing.T) {
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 1})
	c := client(t, socket)
	c.acquire(acquisition{Name: "m", Key: "old"})
	o.publish(model{Name: "m", Seed: 2})

	endpointtest.Eventually(t, time.Second, "the handle hears of version 2", func() bool {
		a := c.must(command{Do: "state", Key: "old"})
		return a.State == "superseded" && a.Newest == 2
	})
	require.EqualValues(t, 2, c.acquire(acquisition{Name: "m", Key: "new"}).Version)
	c.check("old", model{Seed: 1})
	c.check("new", model{Seed: 2})
	require.EqualValues(t, 1, c.acquire(acquisition{Name: "m", Version: 1, Key: "again"}).Version)

	require.Len(t, o.models()[0].Versions, 2)
	c.must(command{Do: "release", Key: "old"})
	c.must(command{Do: "release", Key: "again"})
	endpointtest.Eventually(t, time.Second, "version 1 is freed", func() bool {
		return len(o.models()[0].Versions) == 1
	})
	require.ErrorIs(t, c.acquireError(acquisition{Name: "m", Version: 1, Key: "gone"}), endpoint.ErrNotFound)
	c.check("new", model{Seed: 2})
}

func TestServerWithdrawKeepsReaders(t *testing.T) {
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 3})
	c := client(t, socket)
	c.acquire(acquisition{Name: "m", Key: "h"})
	o.must(command{Do: "withdraw", Name: "m"})
	endpointtest.Eventually(t, time.Second, "the handle hears of it", func() bool {
		return c.must(command{Do: "state", Key: "h"}).State == "withdrawn"
	})
	c.check("h", model{Seed: 3})
	require.ErrorIs(t, c.acquireError(acquisition{Name: "m", Key: "x"}), endpoint.ErrNotFound)
	require.Contains(t, c.ask(command{Do: "take down", Name: "m"}).Is, "not found")

	require.EqualValues(t, 2, o.publish(model{Name: "m", Seed: 4}), "versions never repeat")
	c.acquire(acquisition{Name: "m", Key: "h2"})
	c.check("h2", model{Seed: 4})
	require.Equal(t, "withdrawn", c.must(command{Do: "state", Key: "h"}).State)
}

func TestClientPublish(t *testing.T) {
	o, socket := owner(t)
	publisher, reader := client(t, socket), client(t, socket)
	require.EqualValues(t, 1, publisher.must(command{Do: "offer", Name: "m", Seed: 5}).Version)
	reader.acquire(acquisition{Name: "m", Key: "h"})
	reader.check("h", model{Seed: 5})
	require.Equal(t, publisher.PID(), o.models()[0].Versions[0].Publisher.PID)

	publisher.Kill()
	reader.check("h", model{Seed: 5})
	late := client(t, socket)
	late.acquire(acquisition{Name: "m", Key: "h"})
	late.check("h", model{Seed: 5})
	late.must(command{Do: "take down", Name: "m"})
	require.ErrorIs(t, reader.acquireError(acquisition{Name: "m", Key: "x"}), endpoint.ErrNotFound)
}

func TestServerPublishNames(t *testing.T) {
	o, socket := owner(t)
	c := client(t, socket)
	for _, name := range []string{"", "a\nb", string(make([]byte, 300))} {
		require.ErrorIs(t, o.publishError(model{Name: name}), endpoint.ErrInvalid, "%q", name)
		require.Contains(t, c.ask(command{Do: "offer", Name: name}).Is, "invalid", "%q", name)
	}
	require.ErrorIs(t, c.acquireError(acquisition{Name: "nothing", Key: "h"}), endpoint.ErrNotFound)
	require.Empty(t, o.models())
}

func TestWatchAllNames(t *testing.T) {
	o, socket := owner(t)
	o.publish(model{Name: "a"})
	c := client(t, socket)
	c.must(command{Do: "watch", Key: "all"})
	c.must(command{Do: "watch", Key: "b", Names: []string{"b"}})
	next := func(key, kind, name string, version uint64) {
		t.Helper()
		a := c.must(command{Do: "next", Key: key})
		require.Equal(t, []any{kind, name, version}, []any{a.Kind, a.Name, a.Version})
	}
	next("all", "published", "a", 1)
	o.publish(model{Name: "b"})
	next("all", "published", "b", 1)
	next("b", "published", "b", 1)
	o.publish(model{Name: "a"})
	next("all", "published", "a", 2)
	o.must(command{Do: "withdraw", Name: "b"})
	next("all", "withdrawn", "b", 1)
	next("b", "withdrawn", "b", 1)

	require.Contains(t, c.ask(command{Do: "next", Key: "b", Millis: 20}).Is, "deadline")
	c.must(command{Do: "unwatch", Key: "b"})
	require.Contains(t, c.ask(command{Do: "next", Key: "b"}).Is, "closed")
	o.publish(model{Name: "b"})
	next("all", "published", "b", 2)
}

func TestWatchSlowReader(t *testing.T) {
	o, socket := owner(t)
	c := client(t, socket)
	c.must(command{Do: "watch", Key: "w"})
	for range 50 {
		o.publish(model{Name: "m", Bytes: 1})
	}
	var last uint64
	for last != 50 {
		a := c.must(command{Do: "next", Key: "w"})
		require.Greater(t, a.Version, last)
		last = a.Version
	}
}
