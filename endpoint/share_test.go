package endpoint_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClientAcquireSharesMemory(t *testing.T) {
	o, socket := owner(t)
	require.EqualValues(t, 1, o.must(command{Do: "publish", Name: "m", Seed: 7}).Version)
	for range 3 {
		c := client(t, socket)
		require.EqualValues(t, 1, c.must(command{Do: "acquire", Name: "m", Key: "h"}).Version)
		c.must(command{Do: "check", Key: "h", Seed: 7})
	}
	require.Len(t, o.must(command{Do: "books"}).Models[0].Versions[0].Holders, 3)
}

func TestClientAcquireKeepsOldVersion(t *testing.T) {
	o, socket := owner(t)
	o.must(command{Do: "publish", Name: "m", Seed: 1})
	c := client(t, socket)
	c.must(command{Do: "acquire", Name: "m", Key: "old"})
	o.must(command{Do: "publish", Name: "m", Seed: 2})

	eventually(t, time.Second, "the handle hears of version 2", func() bool {
		a := c.must(command{Do: "state", Key: "old"})
		return a.State == "superseded" && a.Newest == 2
	})
	require.EqualValues(t, 2, c.must(command{Do: "acquire", Name: "m", Key: "new"}).Version)
	c.must(command{Do: "check", Key: "old", Seed: 1})
	c.must(command{Do: "check", Key: "new", Seed: 2})
	require.EqualValues(t, 1, c.must(command{Do: "acquire", Name: "m", Version: 1, Key: "again"}).Version)

	require.Len(t, o.must(command{Do: "books"}).Models[0].Versions, 2)
	c.must(command{Do: "release", Key: "old"})
	c.must(command{Do: "release", Key: "again"})
	eventually(t, time.Second, "version 1 is freed", func() bool {
		return len(o.must(command{Do: "books"}).Models[0].Versions) == 1
	})
	a := c.ask(command{Do: "acquire", Name: "m", Version: 1, Key: "gone"})
	require.Contains(t, a.Is, "not found")
	c.must(command{Do: "check", Key: "new", Seed: 2})
}

func TestServerWithdrawKeepsReaders(t *testing.T) {
	o, socket := owner(t)
	o.must(command{Do: "publish", Name: "m", Seed: 3})
	c := client(t, socket)
	c.must(command{Do: "acquire", Name: "m", Key: "h"})
	o.must(command{Do: "withdraw", Name: "m"})
	eventually(t, time.Second, "the handle hears of it", func() bool {
		return c.must(command{Do: "state", Key: "h"}).State == "withdrawn"
	})
	c.must(command{Do: "check", Key: "h", Seed: 3})
	require.Contains(t, c.ask(command{Do: "acquire", Name: "m", Key: "x"}).Is, "not found")
	require.Contains(t, c.ask(command{Do: "take down", Name: "m"}).Is, "not found")

	require.EqualValues(t, 2, o.must(command{Do: "publish", Name: "m", Seed: 4}).Version, "versions never repeat")
	c.must(command{Do: "acquire", Name: "m", Key: "h2"})
	c.must(command{Do: "check", Key: "h2", Seed: 4})
	require.Equal(t, "withdrawn", c.must(command{Do: "state", Key: "h"}).State)
}

func TestClientPublish(t *testing.T) {
	o, socket := owner(t)
	publisher, reader := client(t, socket), client(t, socket)
	require.EqualValues(t, 1, publisher.must(command{Do: "offer", Name: "m", Seed: 5}).Version)
	reader.must(command{Do: "acquire", Name: "m", Key: "h"})
	reader.must(command{Do: "check", Key: "h", Seed: 5})
	require.Equal(t, publisher.pid(), o.must(command{Do: "books"}).Models[0].Versions[0].Publisher.PID)

	publisher.kill()
	reader.must(command{Do: "check", Key: "h", Seed: 5})
	late := client(t, socket)
	late.must(command{Do: "acquire", Name: "m", Key: "h"})
	late.must(command{Do: "check", Key: "h", Seed: 5})
	late.must(command{Do: "take down", Name: "m"})
	require.Contains(t, reader.ask(command{Do: "acquire", Name: "m", Key: "x"}).Is, "not found")
}

func TestServerPublishNames(t *testing.T) {
	o, socket := owner(t)
	c := client(t, socket)
	for _, name := range []string{"", "a\nb", string(make([]byte, 300))} {
		require.Contains(t, o.ask(command{Do: "publish", Name: name}).Is, "invalid", "%q", name)
		require.Contains(t, c.ask(command{Do: "offer", Name: name}).Is, "invalid", "%q", name)
	}
	require.Contains(t, c.ask(command{Do: "acquire", Name: "nothing", Key: "h"}).Is, "not found")
	require.Empty(t, o.must(command{Do: "books"}).Models)
}

func TestWatchAllNames(t *testing.T) {
	o, socket := owner(t)
	o.must(command{Do: "publish", Name: "a"})
	c := client(t, socket)
	c.must(command{Do: "watch", Key: "all"})
	c.must(command{Do: "watch", Key: "b", Names: []string{"b"}})
	next := func(key, kind, name string, version uint64) {
		t.Helper()
		a := c.must(command{Do: "next", Key: key})
		require.Equal(t, []any{kind, name, version}, []any{a.Kind, a.Name, a.Version})
	}
	next("all", "published", "a", 1)
	o.must(command{Do: "publish", Name: "b"})
	next("all", "published", "b", 1)
	next("b", "published", "b", 1)
	o.must(command{Do: "publish", Name: "a"})
	next("all", "published", "a", 2)
	o.must(command{Do: "withdraw", Name: "b"})
	next("all", "withdrawn", "b", 1)
	next("b", "withdrawn", "b", 1)

	require.Contains(t, c.ask(command{Do: "next", Key: "b", Millis: 20}).Is, "deadline")
	c.must(command{Do: "unwatch", Key: "b"})
	require.Contains(t, c.ask(command{Do: "next", Key: "b"}).Is, "closed")
	o.must(command{Do: "publish", Name: "b"})
	next("all", "published", "b", 2)
}

func TestWatchSlowReader(t *testing.T) {
	o, socket := owner(t)
	c := client(t, socket)
	c.must(command{Do: "watch", Key: "w"})
	for range 50 {
		o.must(command{Do: "publish", Name: "m", Bytes: 1})
	}
	var last uint64
	for last != 50 {
		a := c.must(command{Do: "next", Key: "w"})
		require.Greater(t, a.Version, last)
		last = a.Version
	}
}
