package endpoint_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestClientAcquireSharesMemory(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 1})
	c := client(t, socket)
	c.acquire(acquisition{Name: "m", Key: "old"})
	o.publish(model{Name: "m", Seed: 2})

	proctest.Eventually(t, time.Second, "the handle hears of version 2", func() bool {
		a := c.handle("old")
		return a.State == "superseded" && a.Newest == 2
	})
	require.EqualValues(t, 2, c.acquire(acquisition{Name: "m", Key: "new"}).Version)
	c.check("old", model{Seed: 1})
	c.check("new", model{Seed: 2})
	require.EqualValues(t, 1, c.acquire(acquisition{Name: "m", Version: 1, Key: "again"}).Version)

	require.Len(t, o.models()[0].Versions, 2)
	c.release("old")
	c.release("again")
	proctest.Eventually(t, time.Second, "version 1 is freed", func() bool {
		return len(o.models()[0].Versions) == 1
	})
	require.ErrorIs(t, c.acquireError(acquisition{Name: "m", Version: 1, Key: "gone"}), endpoint.ErrNotFound)
	c.check("new", model{Seed: 2})
}

func TestServerWithdrawKeepsReaders(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "m", Seed: 3})
	c := client(t, socket)
	c.acquire(acquisition{Name: "m", Key: "h"})
	o.withdraw("m")
	proctest.Eventually(t, time.Second, "the handle hears of it", func() bool {
		return c.handle("h").State == "withdrawn"
	})
	c.check("h", model{Seed: 3})
	require.ErrorIs(t, c.acquireError(acquisition{Name: "m", Key: "x"}), endpoint.ErrNotFound)
	require.ErrorIs(t, failure(c, withdrawOp, "m"), endpoint.ErrNotFound)

	require.EqualValues(t, 2, o.publish(model{Name: "m", Seed: 4}), "versions never repeat")
	c.acquire(acquisition{Name: "m", Key: "h2"})
	c.check("h2", model{Seed: 4})
	require.Equal(t, "withdrawn", c.handle("h").State)
}

func TestClientPublish(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	publisher, reader := client(t, socket), client(t, socket)
	require.EqualValues(t, 1, publisher.publish(model{Name: "m", Seed: 5}))
	reader.acquire(acquisition{Name: "m", Key: "h"})
	reader.check("h", model{Seed: 5})
	require.Equal(t, publisher.PID(), o.models()[0].Versions[0].Publisher.PID)

	publisher.Kill()
	reader.check("h", model{Seed: 5})
	late := client(t, socket)
	late.acquire(acquisition{Name: "m", Key: "h"})
	late.check("h", model{Seed: 5})
	late.withdraw("m")
	require.ErrorIs(t, reader.acquireError(acquisition{Name: "m", Key: "x"}), endpoint.ErrNotFound)
}

func TestServerPublishNames(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	c := client(t, socket)
	for _, name := range []string{"", "a\nb", string(make([]byte, 300))} {
		require.ErrorIs(t, o.publishError(model{Name: name}), endpoint.ErrInvalid, "%q", name)
		require.ErrorIs(t, c.publishError(model{Name: name}), endpoint.ErrInvalid, "%q", name)
	}
	require.ErrorIs(t, c.acquireError(acquisition{Name: "nothing", Key: "h"}), endpoint.ErrNotFound)
	require.Empty(t, o.models())
}

func TestWatchAllNames(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	o.publish(model{Name: "a"})
	c := client(t, socket)
	c.watch("all")
	c.watch("b", "b")
	next := func(key, kind, name string, version uint64) {
		t.Helper()
		e := c.next(key)
		require.Equal(t, []any{kind, name, version}, []any{e.Kind.String(), e.Name, e.Version})
	}
	next("all", "published", "a", 1)
	o.publish(model{Name: "b"})
	next("all", "published", "b", 1)
	next("b", "published", "b", 1)
	o.publish(model{Name: "a"})
	next("all", "published", "a", 2)
	o.withdraw("b")
	next("all", "withdrawn", "b", 1)
	next("b", "withdrawn", "b", 1)

	require.ErrorIs(t, c.nextError("b", 20*time.Millisecond), context.DeadlineExceeded)
	c.unwatch("b")
	require.ErrorIs(t, c.nextError("b", 0), endpoint.ErrClosed)
	o.publish(model{Name: "b"})
	next("all", "published", "b", 2)
}

func TestWatchSlowReader(t *testing.T) {
	t.Parallel()
	o, socket := owner(t)
	c := client(t, socket)
	c.watch("w")
	for range 50 {
		o.publish(model{Name: "m", Bytes: 1})
	}
	var last uint64
	for last != 50 {
		e := c.next("w")
		require.Greater(t, e.Version, last)
		last = e.Version
	}
}
