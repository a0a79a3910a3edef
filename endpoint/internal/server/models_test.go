package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// modelServer is a server with host memory. A failed Close fails the test, so that every lease and version is freed.
type modelServer struct {
	*Server
	dev driver.Device
	id  uint64 // of the newest request
}

func newModelServer(t *testing.T, retain catalog.Retention) *modelServer {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	s, err := New(Config{Log: slog.New(slog.DiscardHandler), Devices: []driver.Device{dev}, Retain: retain})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, dev.Close())
	})
	return &modelServer{Server: s, dev: dev}
}

// weights returns a state dict with one tensor of the given number of bytes.
func (s *modelServer) weights(t *testing.T, bytes int64) *module.StateDict {
	t.Helper()
	w, err := tensor.Zeros(s.dev, tensor.Uint8, tensor.Shape{bytes})
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", w))
	return sd
}

func (s *modelServer) publish(t *testing.T, name string) uint64 {
	t.Helper()
	version, err := s.Models.Publish(t.Context(), Publication{Name: name, StateDict: s.weights(t, 64)})
	require.NoError(t, err)
	return version
}

// ask performs an operation for a new request whose reply is sent.
func (s *modelServer) ask(t *testing.T, op message.Op, in, out any) error {
	t.Helper()
	s.id++
	return s.performAs(t, s.id, op, in, out, true)
}

// held returns the number of leases of the newest version of a name.
func (s *modelServer) held(t *testing.T, name string) (leases int) {
	t.Helper()
	info, err := s.Models.Catalog.Info(name)
	require.NoError(t, err)
	for _, h := range info.Versions[0].Holders {
		leases += h.Leases
	}
	return leases
}

func TestAcquireAndRelease(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	require.EqualValues(t, 1, s.publish(t, "m"))
	var out message.Acquired
	require.NoError(t, s.ask(t, message.OpAcquire, message.Acquire{Name: "m"}, &out))
	require.EqualValues(t, 1, out.Version)
	require.Len(t, out.Handles, 1)
	require.Equal(t, 1, s.held(t, "m"))
	require.True(t, s.Sessions.Self().Events.Has(s.id), "the client receives the events of the name")
	subscribed := s.id

	var released message.Released
	require.NoError(t, s.ask(t, message.OpRelease, message.Release{Leases: []uint64{out.Lease}}, &released))
	require.EqualValues(t, 1, released.Count)
	require.Zero(t, s.held(t, "m"))
	require.False(t, s.Sessions.Self().Events.Has(subscribed))
	require.Error(t, s.ask(t, message.OpRelease, message.Release{Leases: []uint64{out.Lease}}, &released), "a second release")
}

// If a client does not receive its lease, the lease and the subscription are released.
func TestLostReplyReleasesLease(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	s.publish(t, "m")
	require.NoError(t, s.performAs(t, 7, message.OpAcquire, message.Acquire{Name: "m"}, new(message.Acquired), false))
	require.Zero(t, s.held(t, "m"))
	require.False(t, s.Sessions.Self().Events.Has(7))
}

// A refused request for a version creates no subscription. Its error contains the reason.
func TestAcquireOfAbsentVersion(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	absent := func(version uint64) error {
		err := s.ask(t, message.OpAcquire, message.Acquire{Name: "m", Version: version}, new(message.Acquired))
		require.False(t, s.Sessions.Self().Events.Has(s.id), "a refused request subscribes to nothing")
		return err
	}
	require.ErrorIs(t, absent(0), status.ErrNotFound)
	load, err := s.Models.Announce("m", "file.safetensors")
	require.NoError(t, err)
	require.ErrorContains(t, absent(0), "it waits for its turn")
	load.Progress(25, 100)
	require.ErrorContains(t, absent(0), "25%, 25 of 100 bytes")
	require.ErrorIs(t, absent(0), status.ErrLoading)
	load.Fail(errors.New("the disk is full"))
	require.ErrorContains(t, absent(0), "it could not be loaded: the disk is full")
	s.publish(t, "m")
	require.Empty(t, s.Models.List().Loading, "the failed load is forgotten with the publication")
	require.ErrorIs(t, absent(2), status.ErrNotFound)
	load.Progress(50, 100) // of a load that is over: no effect
	require.Empty(t, s.Models.List().Loading)
}

// A newer load of a name replaces the earlier one, which then changes nothing.
func TestNewerLoadReplacesEarlierOne(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	first, err := s.Models.Announce("m", "first")
	require.NoError(t, err)
	second, err := s.Models.Announce("m", "second")
	require.NoError(t, err)
	first.Fail(errors.New("first"))
	first.Done()
	list := s.Models.List().Loading
	require.Len(t, list, 1)
	require.Equal(t, "second", list[0].Source)
	require.Equal(t, message.LoadWaiting, list[0].State)
	second.Done()
	require.Empty(t, s.Models.List().Loading)
	var none *Load
	none.Progress(1, 2)
	none.Done()
	_, err = s.Models.Announce("../m", "")
	require.ErrorIs(t, err, status.ErrInvalid)
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	s.publish(t, "m")
	var lease message.Acquired
	require.NoError(t, s.ask(t, message.OpAcquire, message.Acquire{Name: "m"}, &lease))
	require.NoError(t, s.ask(t, message.OpWithdraw, message.Withdraw{Name: "m"}, new(message.Withdrawn)))
	require.ErrorIs(t, s.ask(t, message.OpWithdraw, message.Withdraw{Name: "m"}, new(message.Withdrawn)), status.ErrNotFound)
	require.Equal(t, 1, s.held(t, "m"), "readers keep the version")
	require.NoError(t, s.ask(t, message.OpRelease, message.Release{Leases: []uint64{lease.Lease}}, new(message.Released)))
	require.ErrorIs(t, s.ask(t, message.OpInfo, message.Info{Name: "m"}, new(message.InfoResult)), status.ErrNotFound)
}

func TestRollback(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{Versions: 1})
	rollback := func(version uint64) (uint64, error) {
		var out message.Published
		err := s.ask(t, message.OpRollback, message.Rollback{Name: "m", Version: version}, &out)
		return out.Version, err
	}
	_, err := rollback(0)
	require.ErrorIs(t, err, status.ErrNotFound)
	s.publish(t, "m")
	_, err = rollback(0)
	require.ErrorContains(t, err, "no superseded version")
	_, err = rollback(1)
	require.ErrorContains(t, err, "is the current one")
	s.publish(t, "m")
	version, err := rollback(0)
	require.NoError(t, err)
	require.EqualValues(t, 3, version)
	info, err := s.Models.Catalog.Info("m")
	require.NoError(t, err)
	require.Equal(t, "rollback to version 1", info.Versions[0].Origin.Source)
	_, err = rollback(1)
	require.ErrorIs(t, err, status.ErrNotFound, "version 1 is not retained any more")
	total, most := s.Models.Use()
	require.Equal(t, 1, total.Versions, "the client that rolled back is charged, the owner's own publications are not")
	require.EqualValues(t, 64, most.Bytes)
}

// A failed publication frees its state dict and its charge, and nothing is visible.
func TestFailedPublication(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	publish := func(p Publication) error {
		p.StateDict = s.weights(t, 64)
		c := charge{session: 5, Usage: Usage{Versions: 1, Storages: 1, Bytes: 64}}
		require.NoError(t, s.Models.quotas.take(c, s.Limits.Publish, s.Limits.PublishTotal))
		_, err := s.Models.publishRecord(t.Context(), &record{Publication: p, models: s.Models, charge: c})
		require.Error(t, err)
		return err
	}
	require.ErrorIs(t, publish(Publication{Name: "a/../b"}), status.ErrInvalid)
	require.ErrorIs(t, publish(Publication{Name: "m", After: catalog.MaxAfter + 1}), status.ErrInvalid)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Models.Publish(ended, Publication{Name: "m", StateDict: s.weights(t, 64)})
	require.ErrorIs(t, err, context.Canceled)
	total, _ := s.Models.Use()
	require.Equal(t, Usage{}, total)
	require.Empty(t, s.Models.List().Models)
}

// Pages of any size contain every version once. A page has at least one version.
func TestListPages(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{Versions: 3})
	want := map[string][]uint64{"a": {4, 3, 2, 1}, "b": {2, 1}, "c": {1}}
	for name, versions := range want {
		for range versions {
			s.publish(t, name)
		}
	}
	for _, frame := range []int64{0, 1 << 10, 1} { // all versions, two and one in a page
		s.Models.Limits.Wire.Frame = frame
		got := map[string][]uint64{}
		for in := (message.List{}); ; {
			var out message.Listed
			require.NoError(t, s.ask(t, message.OpList, in, &out))
			require.NotEmpty(t, out.Models)
			for _, model := range out.Models {
				for _, v := range model.Versions {
					got[model.Name] = append(got[model.Name], v.Version)
				}
			}
			if out.Next == "" {
				break
			}
			in = message.List{After: out.Next, AfterVersion: out.NextVersion}
		}
		require.Equal(t, want, got)
	}
}

// Superseded versions end at the age of their retention.
func TestVersionsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newModelServer(t, catalog.Retention{Versions: 5, Age: time.Minute})
		versions := func() int {
			info, err := s.Models.Catalog.Info("m")
			require.NoError(t, err)
			return len(info.Versions)
		}
		s.publish(t, "m")
		s.publish(t, "m")
		time.Sleep(30 * time.Second)
		s.publish(t, "m")
		require.Equal(t, 3, versions())
		time.Sleep(31 * time.Second)
		synctest.Wait()
		require.Equal(t, 2, versions())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, versions(), "the current version stays")
	})
}

func TestRetentionOf(t *testing.T) {
	t.Parallel()
	none, err := retentionOf(nil)
	require.NoError(t, err)
	require.Nil(t, none)
	in := &message.Retention{Versions: 3, Age: time.Minute, Bytes: 1 << 40}
	r, err := retentionOf(in)
	require.NoError(t, err)
	require.Equal(t, &catalog.Retention{Versions: 3, Age: time.Minute, Bytes: 1 << 40}, r)
	require.Equal(t, in, encodeRetention(r))
	require.Nil(t, encodeRetention(nil))
	for _, bad := range []message.Retention{{Versions: 1 << 40}, {Bytes: 1 << 63}, {Age: -1}} {
		_, err := retentionOf(&bad)
		require.ErrorIs(t, err, status.ErrInvalid, "%+v", bad)
	}
}

// A watch reports the current versions first, then each change. Events that a lost watch missed are replaced by the
// current versions.
func TestNamesSource(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	s.publish(t, "a")
	for _, c := range []struct {
		names []string
		want  []string // names of the events after a change of a and of b
	}{{nil, []string{"a", "b"}}, {[]string{"b"}, []string{"b"}}} {
		source := &namesSource{of: s.Models.Catalog, names: c.names, current: true}
		source.Open(func() {})
		require.True(t, source.Opening())
		first := source.Take()
		if c.names == nil {
			require.Equal(t, message.EventPublished, first[0].(message.Event).Kind)
		}
		require.False(t, source.Opening())
		s.publish(t, "a")
		s.publish(t, "b")
		var names []string
		for _, e := range source.Take() {
			names = append(names, e.(message.Event).Name)
		}
		require.Equal(t, c.want, names)
		require.Empty(t, source.Take())
		source.Close()
		require.NoError(t, s.Models.Withdraw(t.Context(), "b", nil))
	}
	renewed := &namesSource{of: s.Models.Catalog, names: []string{"a"}, withdrawn: 9}
	renewed.Open(func() {})
	defer renewed.Close()
	events := renewed.Take()
	require.Len(t, events, 1)
	require.Equal(t, message.Event{Kind: message.EventWithdrawn, Name: "a", Version: 9}, events[0])
}
