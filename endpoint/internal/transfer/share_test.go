package transfer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestClientAcquireSharesMemory(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	require.EqualValues(t, 1, o.Publish(fixture.Model{Name: "m", Seed: 7}))
	for range 3 {
		c := fixture.Client(t, socket)
		require.EqualValues(t, 1, c.Acquire(fixture.Acquisition{Name: "m", Key: "h"}).Version)
		c.Check("h", fixture.Model{Seed: 7})
	}
	require.Len(t, o.Models()[0].Versions[0].Holders, 3)
}

func TestClientAcquireKeepsOldVersion(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	c := fixture.Client(t, socket)
	c.Acquire(fixture.Acquisition{Name: "m", Key: "old"})
	o.Publish(fixture.Model{Name: "m", Seed: 2})

	proctest.Eventually(t, time.Second, "the handle hears of version 2", func() bool {
		a := c.Handle("old")
		return a.State == "superseded" && a.Newest == 2
	})
	require.EqualValues(t, 2, c.Acquire(fixture.Acquisition{Name: "m", Key: "new"}).Version)
	c.Check("old", fixture.Model{Seed: 1})
	c.Check("new", fixture.Model{Seed: 2})
	require.EqualValues(t, 1, c.Acquire(fixture.Acquisition{Name: "m", Version: 1, Key: "again"}).Version)

	require.Len(t, o.Models()[0].Versions, 2)
	c.Release("old")
	c.Release("again")
	proctest.Eventually(t, time.Second, "version 1 is freed", func() bool {
		return len(o.Models()[0].Versions) == 1
	})
	require.ErrorIs(t, c.AcquireError(fixture.Acquisition{Name: "m", Version: 1, Key: "gone"}), endpoint.ErrNotFound)
	c.Check("new", fixture.Model{Seed: 2})
}

func TestServerWithdrawKeepsReaders(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 3})
	c := fixture.Client(t, socket)
	c.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	o.Withdraw("m")
	proctest.Eventually(t, time.Second, "the handle hears of it", func() bool {
		return c.Handle("h").State == "withdrawn"
	})
	c.Check("h", fixture.Model{Seed: 3})
	require.ErrorIs(t, c.AcquireError(fixture.Acquisition{Name: "m", Key: "x"}), endpoint.ErrNotFound)
	require.ErrorIs(t, fixture.Failure(c, fixture.WithdrawOp, "m"), endpoint.ErrNotFound)

	require.EqualValues(t, 2, o.Publish(fixture.Model{Name: "m", Seed: 4}), "versions never repeat")
	c.Acquire(fixture.Acquisition{Name: "m", Key: "h2"})
	c.Check("h2", fixture.Model{Seed: 4})
	require.Equal(t, "withdrawn", c.Handle("h").State)
}

func TestClientPublish(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	publisher, reader := fixture.Client(t, socket), fixture.Client(t, socket)
	require.EqualValues(t, 1, publisher.Publish(fixture.Model{Name: "m", Seed: 5}))
	reader.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	reader.Check("h", fixture.Model{Seed: 5})
	require.Equal(t, publisher.PID(), o.Models()[0].Versions[0].Publisher.PID)

	publisher.Kill()
	reader.Check("h", fixture.Model{Seed: 5})
	late := fixture.Client(t, socket)
	late.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	late.Check("h", fixture.Model{Seed: 5})
	late.Withdraw("m")
	require.ErrorIs(t, reader.AcquireError(fixture.Acquisition{Name: "m", Key: "x"}), endpoint.ErrNotFound)
}

func TestServerPublishNames(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	c := fixture.Client(t, socket)
	for _, name := range []string{"", "a\nb", string(make([]byte, 300))} {
		require.ErrorIs(t, o.PublishError(fixture.Model{Name: name}), endpoint.ErrInvalid, "%q", name)
		require.ErrorIs(t, c.PublishError(fixture.Model{Name: name}), endpoint.ErrInvalid, "%q", name)
	}
	require.ErrorIs(t, c.AcquireError(fixture.Acquisition{Name: "nothing", Key: "h"}), endpoint.ErrNotFound)
	require.Empty(t, o.Models())
}

func TestWatchAllNames(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "a"})
	c := fixture.Client(t, socket)
	c.Watch("all")
	c.Watch("b", "b")
	next := func(key, kind, name string, version uint64) {
		t.Helper()
		e := c.Next(key)
		require.Equal(t, []any{kind, name, version}, []any{e.Kind.String(), e.Name, e.Version})
	}
	next("all", "published", "a", 1)
	o.Publish(fixture.Model{Name: "b"})
	next("all", "published", "b", 1)
	next("b", "published", "b", 1)
	o.Publish(fixture.Model{Name: "a"})
	next("all", "published", "a", 2)
	o.Withdraw("b")
	next("all", "withdrawn", "b", 1)
	next("b", "withdrawn", "b", 1)

	require.ErrorIs(t, c.NextError("b", 20*time.Millisecond), context.DeadlineExceeded)
	unwatch(c, "b")
	require.ErrorIs(t, c.NextError("b", 0), endpoint.ErrClosed)
	o.Publish(fixture.Model{Name: "b"})
	next("all", "published", "b", 2)
}

func TestWatchSlowReader(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	c := fixture.Client(t, socket)
	c.Watch("w")
	for range 50 {
		o.Publish(fixture.Model{Name: "m", Bytes: 1})
	}
	var last uint64
	for last != 50 {
		e := c.Next("w")
		require.Greater(t, e.Version, last)
		last = e.Version
	}
}

// unwatchOp closes a watcher by its key.
var unwatchOp = fixture.NewOp("unwatch", func(w *fixture.Worker, _ context.Context, key string) (fixture.None, error) {
	return fixture.None{}, w.Watchers[key].Close()
})

// unwatch closes a watcher of a client.
func unwatch(c *fixture.Child, key string) {
	c.T.Helper()
	unwatchOp.Must(c.Process, key)
}
