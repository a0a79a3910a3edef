package catalog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// testCatalog is a catalog and the probes that were published to it.
type testCatalog struct {
	*catalog.Catalog
	t testing.TB
}

func newTestCatalog(t testing.TB, opts catalog.Options) testCatalog {
	b := testCatalog{catalog.New(opts), t}
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// publish publishes 8 bytes under the name.
func (b testCatalog) publish(name string) (*probe, uint64) {
	b.t.Helper()
	p := &probe{bytes: 8}
	v, err := b.Publish(name, p.stateDict(b.t), catalog.Origin{})
	require.NoError(b.t, err)
	return p, v
}

func (b testCatalog) acquire(name string, version, holder uint64) *catalog.Lease {
	b.t.Helper()
	l, err := b.Acquire(name, version, catalog.Holder{ID: holder})
	require.NoError(b.t, err)
	return l
}

func TestReadersOfTheOldVersionStayOnIt(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	first, v1 := b.publish("model")
	old := b.acquire("model", 0, 1)
	second, v2 := b.publish("model")
	fresh := b.acquire("model", 0, 2)

	require.Equal(t, []uint64{1, 2}, []uint64{v1, v2})
	require.Equal(t, v1, old.Version)
	require.Equal(t, v2, fresh.Version)
	require.NotSame(t, old.StateDict(), fresh.StateDict())
	require.False(t, first.isClosed(), "version 1 has a reader")

	require.NoError(t, b.Release(old.ID, 1))
	require.True(t, first.isClosed(), "version 1 is old and unheld")
	_, err := b.Acquire("model", v1, catalog.Holder{ID: 1})
	require.ErrorIs(t, err, catalog.ErrNoVersion)

	require.NoError(t, b.Release(fresh.ID, 2))
	require.False(t, second.isClosed(), "version 2 is current")
}

func TestUnheldOldVersionIsFreedAtOnce(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	first, _ := b.publish("model")
	b.publish("model")
	require.True(t, first.isClosed())
}

func TestOldVersionCanBeAcquiredWhileItIsHeld(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	first, v1 := b.publish("model")
	l := b.acquire("model", 0, 1)
	b.publish("model")
	again := b.acquire("model", v1, 2)
	require.NoError(t, b.Release(l.ID, 1))
	require.False(t, first.isClosed())
	require.NoError(t, b.Release(again.ID, 2))
	require.True(t, first.isClosed())
}

func TestRetainKeepsTheNewestUnheldOldVersions(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{Retain: catalog.Retention{Versions: 1}})
	one, _ := b.publish("model")
	held := b.acquire("model", 0, 1)
	two, v2 := b.publish("model")
	three, _ := b.publish("model")
	require.False(t, one.isClosed(), "held")
	require.False(t, two.isClosed(), "retained")

	require.NoError(t, b.Release(held.ID, 1))
	require.True(t, one.isClosed(), "a newer one is retained")
	require.False(t, two.isClosed(), "retained")

	back := b.acquire("model", v2, 1)
	b.publish("model")
	require.False(t, three.isClosed(), "retained, for the held one does not count")
	require.NoError(t, b.Release(back.ID, 1))
	require.True(t, two.isClosed())
	require.False(t, three.isClosed())
	require.NoError(t, b.Withdraw("model"))
	require.True(t, three.isClosed(), "withdrawn versions are not retained")
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	held, _ := b.publish("model")
	l := b.acquire("model", 0, 1)
	unheld, v2 := b.publish("model")
	require.NoError(t, b.Withdraw("model"))
	require.True(t, unheld.isClosed())
	require.False(t, held.isClosed())

	info, err := b.Info("model")
	require.NoError(t, err)
	require.Zero(t, info.Current)
	require.Len(t, info.Versions, 1)
	require.True(t, info.Versions[0].Withdrawn)

	_, err = b.Acquire("model", 0, catalog.Holder{ID: 2})
	require.ErrorIs(t, err, catalog.ErrNotFound)
	require.ErrorIs(t, b.Withdraw("model"), catalog.ErrNotFound)

	third, v3 := b.publish("model")
	require.Equal(t, v2+1, v3, "numbers go on after a withdrawal")
	_, err = b.Acquire("model", 1, catalog.Holder{ID: 2})
	require.ErrorIs(t, err, catalog.ErrNoVersion, "a withdrawn version takes no new readers, published again or not")

	require.NoError(t, b.Release(l.ID, 1))
	require.True(t, held.isClosed())
	require.False(t, third.isClosed())
}

func TestVersionsGoOnAfterEverythingWasFreed(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	for want := uint64(1); want <= 5; want++ {
		_, v := b.publish("model")
		require.Equal(t, want, v)
		require.NoError(t, b.Withdraw("model"))
		require.Empty(t, b.List())
	}
}

func TestForgottenNamesDoNotRepeatVersions(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	for range 3 {
		b.publish("seldom")
	}
	require.NoError(t, b.Withdraw("seldom"))
	live, _ := b.publish("live")
	for i := range 3000 {
		name := fmt.Sprintf("once %d", i)
		b.publish(name)
		require.NoError(t, b.Withdraw(name))
	}
	_, v := b.publish("seldom")
	require.Greater(t, v, uint64(3))
	_, v = b.publish("live")
	require.Equal(t, uint64(2), v, "a name that was there all the time counts on")
	require.True(t, live.isClosed())
}

func TestRelease(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	p, _ := b.publish("model")
	mine := b.acquire("model", 0, 1)
	theirs := b.acquire("model", 0, 2)
	require.NoError(t, b.Withdraw("model"))

	require.ErrorIs(t, b.Release(99, 1), catalog.ErrNotFound)
	require.ErrorIs(t, b.Release(theirs.ID, 1), catalog.ErrNotHolder)
	require.NoError(t, b.Release(mine.ID, 1))
	require.ErrorIs(t, b.Release(mine.ID, 1), catalog.ErrNotFound, "released twice")
	require.False(t, p.isClosed(), "releasing twice took nobody else's lease")
	require.NoError(t, b.Release(theirs.ID, 2))
	require.True(t, p.isClosed())
}

func TestReleaseHolder(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	a, _ := b.publish("a")
	c, _ := b.publish("c")
	for range 3 {
		b.acquire("a", 0, 1)
	}
	b.acquire("c", 0, 1)
	other := b.acquire("c", 0, 2)
	require.NoError(t, b.Withdraw("a"))
	require.NoError(t, b.Withdraw("c"))

	require.Equal(t, 4, b.ReleaseHolder(1))
	require.True(t, a.isClosed())
	require.False(t, c.isClosed())
	require.Zero(t, b.ReleaseHolder(1))
	require.NoError(t, b.Release(other.ID, 2))
	require.True(t, c.isClosed())
}

func TestPublishTakesTheStateDictAlsoWhenItFails(t *testing.T) {
	t.Parallel()
	c := catalog.New(catalog.Options{})
	_, err := c.Publish("model", nil, catalog.Origin{})
	require.ErrorIs(t, err, catalog.ErrNoStateDict)

	bad := &probe{bytes: 1}
	_, err = c.Publish("", bad.stateDict(t), catalog.Origin{})
	require.ErrorIs(t, err, catalog.ErrName)
	require.True(t, bad.isClosed())

	require.NoError(t, c.Close())
	late := &probe{bytes: 1}
	_, err = c.Publish("model", late.stateDict(t), catalog.Origin{})
	require.ErrorIs(t, err, catalog.ErrClosed)
	require.True(t, late.isClosed())
}

func TestClose(t *testing.T) {
	t.Parallel()
	var freed []string
	c := catalog.New(catalog.Options{Freed: func(name string, version uint64, err error) {
		freed = append(freed, fmt.Sprint(name, version, err != nil))
	}})
	held, broken := &probe{bytes: 1}, &probe{bytes: 1, fail: errors.New("unmap failed")}
	_, err := c.Publish("b", held.stateDict(t), catalog.Origin{})
	require.NoError(t, err)
	_, err = c.Publish("a", broken.stateDict(t), catalog.Origin{})
	require.NoError(t, err)
	l, err := c.Acquire("b", 0, catalog.Holder{ID: 1})
	require.NoError(t, err)
	w := c.Subscribe(nil, nil)

	require.ErrorContains(t, c.Close(), `version 1 of "a"`)
	require.Equal(t, []string{"a1 true", "b1 false"}, freed)
	require.NoError(t, c.Close(), "a second Close")
	require.True(t, held.isClosed(), "held or not")

	_, err = c.Acquire("b", 0, catalog.Holder{ID: 1})
	require.ErrorIs(t, err, catalog.ErrClosed)
	require.ErrorIs(t, c.Release(l.ID, 1), catalog.ErrClosed)
	require.ErrorIs(t, c.Withdraw("b"), catalog.ErrClosed)
	_, err = c.Info("b")
	require.ErrorIs(t, err, catalog.ErrClosed)
	_, err = c.Newest("b")
	require.ErrorIs(t, err, catalog.ErrClosed)
	require.Zero(t, c.ReleaseHolder(1))
	require.Empty(t, c.List())
	require.Empty(t, c.Holdings())
	require.Equal(t, catalog.Stats{Seq: 2}, c.Stats())
	require.Empty(t, w.Next())
	w.Close()
	late := c.Subscribe([]string{"a"}, nil)
	require.Empty(t, late.Next())
	late.Close()
}

func TestFreedIsToldOfFailuresAndMayCallBack(t *testing.T) {
	t.Parallel()
	var c *catalog.Catalog
	var told error
	c = catalog.New(catalog.Options{Freed: func(name string, version uint64, err error) {
		told = err
		c.List() // would deadlock with the lock held
	}})
	p := &probe{bytes: 1, fail: errors.New("unmap failed")}
	_, err := c.Publish("model", p.stateDict(t), catalog.Origin{})
	require.NoError(t, err)
	require.NoError(t, c.Withdraw("model"))
	require.ErrorContains(t, told, "unmap failed")
	require.NoError(t, c.Close())
}

func TestInfoTellsWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newTestCatalog(t, catalog.Options{Now: func() time.Time { now = now.Add(time.Second); return now }})
	origin := catalog.Origin{Source: "model.safetensors", Publisher: catalog.Holder{ID: 9, PID: 99}}
	alice := catalog.Holder{ID: 1, PID: 11, UID: 1000, Label: "alice"}
	bob := catalog.Holder{ID: 2, PID: 22, UID: 1000, Label: "bob"}
	at := func(seconds int64) catalog.Origin {
		o := origin
		o.At = time.Unix(seconds, 0)
		return o
	}
	publish := func(name string, bytes int64) {
		_, err := b.Publish(name, (&probe{bytes: bytes}).stateDict(t), origin)
		require.NoError(t, err)
	}
	acquire := func(name string, h catalog.Holder) *catalog.Lease {
		l, err := b.Acquire(name, 0, h)
		require.NoError(t, err)
		return l
	}
	publish("z", 100)
	publish("a", 7)
	l1 := acquire("z", bob)
	l2 := acquire("z", alice)
	l3 := acquire("z", bob)
	publish("z", 200)
	l4 := acquire("z", bob)

	list := b.List()
	require.Len(t, list, 2)
	require.Equal(t, "a", list[0].Name)
	require.Equal(t, catalog.Info{Name: "z", Current: 2, Versions: []catalog.VersionInfo{
		{
			Version: 2, Bytes: 200, Tensors: 1, Devices: []driver.Info{probeInfo}, Current: true, Origin: at(1006), Record: l4.Record(),
			Holders: []catalog.HolderInfo{{Holder: bob, Leases: 1, Since: l4.Since}},
		},
		{
			Version: 1, Bytes: 100, Tensors: 1, Devices: []driver.Info{probeInfo}, Origin: at(1001), Record: l1.Record(),
			Holders: []catalog.HolderInfo{
				{Holder: bob, Leases: 2, Since: l1.Since}, {Holder: alice, Leases: 1, Since: l2.Since},
			},
		},
	}}, list[1])
	require.Equal(t, []catalog.Holding{
		{Holder: alice, Leases: []*catalog.Lease{l2}, Bytes: 100},
		{Holder: bob, Leases: []*catalog.Lease{l1, l3, l4}, Bytes: 300},
	}, b.Holdings())
	require.Equal(t, catalog.Stats{Names: 2, Versions: 3, Bytes: 307, Leases: 4, Holders: 2, Seq: 3}, b.Stats())

	newest, err := b.Newest("z")
	require.NoError(t, err)
	require.Equal(t, uint64(2), newest)
	_, err = b.Newest("nothing")
	require.ErrorIs(t, err, catalog.ErrNotFound)
	_, err = b.Info("nothing")
	require.ErrorIs(t, err, catalog.ErrNotFound)
	_, err = b.Acquire("z", 3, alice)
	require.ErrorIs(t, err, catalog.ErrNoVersion)
	require.ErrorContains(t, err, "the newest is 2")
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "silero/vad 16k", "モデル", strings.Repeat("x", 255), "...", "a..b", "/a//b"} {
		require.NoError(t, catalog.CheckName(name), name)
	}
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", 256), "too long in bytes": strings.Repeat("é", 128),
		"not UTF-8": "a\xff", "NUL": "a\x00", "newline": "a\nb", "DEL": "\x7f", "C1": "\u0085", "escape": "\x1b[2J",
		"parent": "..", "folder": ".", "other folder": "../../etc", "inner": "a/../b", "at the end": "a/..",
	} {
		require.ErrorIs(t, catalog.CheckName(name), catalog.ErrName, what)
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	var changes []string
	refuse := errors.New("disk full")
	var fail error
	b := newTestCatalog(t, catalog.Options{Record: func(c catalog.Change) error {
		changes = append(changes, fmt.Sprint(c.Name, c.Version, c.Record != nil, c.Origin.At.IsZero()))
		return fail
	}})
	b.publish("a")
	fail = refuse
	p := &probe{bytes: 8}
	_, err := b.Publish("a", p.stateDict(t), catalog.Origin{})
	require.ErrorIs(t, err, refuse)
	require.True(t, p.isClosed())
	_, err = b.Publish("b", (&probe{bytes: 8}).stateDict(t), catalog.Origin{})
	require.ErrorIs(t, err, refuse)
	require.ErrorIs(t, b.Withdraw("a"), refuse)
	newest, err := b.Newest("a")
	require.NoError(t, err)
	require.Equal(t, uint64(1), newest, "a change that was not recorded is not visible")
	_, err = b.Info("b")
	require.ErrorIs(t, err, catalog.ErrNotFound)
	fail = nil
	_, v := b.publish("a")
	require.Equal(t, uint64(2), v)
	require.NoError(t, b.Withdraw("a"))
	require.Equal(t, []string{"a1 true false", "a2 true false", "b1 true false", "a0 false true", "a2 true false", "a0 false true"}, changes)
}

// Readers do not wait for a change that is written to a disk. They see it afterwards.
func TestReadersDoNotWaitForRecord(t *testing.T) {
	t.Parallel()
	recording, written := make(chan struct{}), make(chan struct{})
	slow := false
	b := newTestCatalog(t, catalog.Options{Record: func(catalog.Change) error {
		if slow {
			recording <- struct{}{}
			<-written
		}
		return nil
	}})
	first, _ := b.publish("a")
	b.publish("b")
	held := b.acquire("a", 1, 1)
	slow = true
	changes := make(chan error, 3)
	go func() {
		_, err := b.Publish("a", (&probe{bytes: 8}).stateDict(t), catalog.Origin{})
		changes <- err
	}()
	<-recording
	go func() {
		_, err := b.Publish("a", (&probe{bytes: 8}).stateDict(t), catalog.Origin{})
		changes <- err
	}()
	go func() { changes <- b.Withdraw("b") }()
	require.Equal(t, uint64(1), b.acquire("a", 0, 2).Version)
	require.NoError(t, b.Release(held.ID, 1))
	b.ReleaseHolder(2)
	require.Len(t, b.List(), 2)
	newest, err := b.Newest("b")
	require.NoError(t, err)
	require.Equal(t, uint64(1), newest)
	for range 2 { // the other changes follow one at a time
		written <- struct{}{}
		<-recording
	}
	written <- struct{}{}
	for range 3 {
		require.NoError(t, <-changes)
	}
	require.Equal(t, uint64(3), b.acquire("a", 0, 3).Version)
	require.True(t, first.isClosed())
	_, err = b.Newest("b")
	require.ErrorIs(t, err, catalog.ErrNotFound)
}

// A change that is being recorded when the catalog is closed fails.
func TestCloseDuringRecord(t *testing.T) {
	t.Parallel()
	var b testCatalog
	b = newTestCatalog(t, catalog.Options{Record: func(c catalog.Change) error {
		if c.Record != nil && c.Version == 1 {
			return nil
		}
		return b.Close()
	}})
	b.publish("a")
	p := &probe{bytes: 8}
	_, err := b.Publish("a", p.stateDict(t), catalog.Origin{})
	require.ErrorIs(t, err, catalog.ErrClosed)
	require.True(t, p.isClosed())
	require.ErrorIs(t, b.Withdraw("a"), catalog.ErrClosed)
}

func TestContinue(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	b.publish("live")
	b.Continue(map[string]uint64{"live": 9, "gone": 4, "older": 1}, 2)
	for name, want := range map[string]uint64{"live": 10, "gone": 5, "older": 3, "new": 3} {
		_, v := b.publish(name)
		require.Equal(t, want, v, name)
	}
}
