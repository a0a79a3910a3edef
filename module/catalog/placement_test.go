package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// copied is the record of a placement. It counts how often it is closed.
type copied struct{ closed *int }

func (copied) Content() *module.StateDict { return module.NewStateDict() }

func (c copied) Close() error {
	*c.closed++
	return nil
}

// placeable is a catalog with two versions of a name and places on two devices of 100 bytes each.
type placeable struct {
	*catalog.Catalog
	t      *testing.T
	now    time.Time
	unused int // calls of Unused
	closed int // placements
}

var gpus = [2]driver.Info{{Type: driver.CUDA, UUID: driver.UUID{1}}, {Type: driver.CUDA, Index: 1, UUID: driver.UUID{2}}}

func newPlaceable(t *testing.T, keep time.Duration) *placeable {
	p := &placeable{t: t, now: time.Unix(1000, 0)}
	opts := catalog.Options{Now: func() time.Time { return p.now }, Unused: func() { p.unused++ }, Retain: catalog.Retention{Versions: 10}}
	for _, gpu := range gpus {
		opts.Places = append(opts.Places, catalog.Place{Device: gpu, Budget: 100, Keep: keep})
	}
	p.Catalog = catalog.New(opts)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func (p *placeable) publish(name string) {
	p.t.Helper()
	_, err := p.Publish(name, module.NewStateDict(), catalog.Origin{})
	require.NoError(p.t, err)
}

// ask requests a lease on a placement for a holder. stopped, if not nil, becomes true when its making is stopped.
func (p *placeable) ask(name string, gpu int, bytes, most int64, holder uint64, stopped *bool) (*catalog.Lease, bool, error) {
	p.t.Helper()
	origin, err := p.Acquire(name, 0, catalog.Holder{ID: holder})
	require.NoError(p.t, err)
	l, made, err := p.Place(origin, gpus[gpu].UUID, bytes, most, func() {
		if stopped != nil {
			*stopped = true
		}
	})
	require.NoError(p.t, p.Release(origin.ID, holder))
	return l, made, err
}

// place returns a lease on a placement, which is made if there is none.
func (p *placeable) place(name string, gpu int, bytes int64) *catalog.Lease {
	p.t.Helper()
	l, made, err := p.ask(name, gpu, bytes, 0, 1, nil)
	require.NoError(p.t, err)
	if made {
		p.Placed(l, copied{&p.closed}, time.Second, nil)
	}
	<-l.Made()
	require.NoError(p.t, l.Err())
	return l
}

func (p *placeable) release(l *catalog.Lease) {
	p.t.Helper()
	require.NoError(p.t, p.Release(l.ID, l.Holder.ID))
}

// stats returns the placements on the first device.
func (p *placeable) stats() catalog.PlaceStats { return p.PlaceStats()[0] }

// A placement is made once, and stays without leases for its time.
func TestPlacementIsKept(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Minute)
	p.publish("m")
	l := p.place("m", 0, 60)
	p.now = p.now.Add(time.Hour)
	require.Zero(t, p.Expire(), "it is held")
	p.release(l)
	require.Equal(t, 1, p.unused)
	require.Equal(t, p.now.Add(time.Minute), p.Expire())
	p.now = p.now.Add(59 * time.Second)
	again := p.place("m", 0, 60)
	require.Equal(t, catalog.PlaceStats{
		Place: catalog.Place{Device: gpus[0], Budget: 100, Keep: time.Minute}, Bytes: 60, Placements: 1, Hits: 1, Copies: 1, CopiedBytes: 60, CopyTime: time.Second,
	}, p.stats())
	p.release(again)
	p.now = p.now.Add(time.Minute)
	require.Zero(t, p.Expire())
	require.Equal(t, 1, p.closed)
	require.Zero(t, p.stats().Bytes)
	require.Zero(t, p.stats().Evictions)
}

// Without a time to keep it, a placement ends with its last lease.
func TestPlacementEndsWithLease(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, 0)
	p.publish("m")
	a, b := p.place("m", 0, 60), p.place("m", 0, 60)
	p.release(a)
	require.Zero(t, p.closed)
	p.release(b)
	require.Equal(t, 1, p.closed)
}

// The earliest unused placements make room in the budget of their device. Those in use stay, and a placement that does not
// fit beside them evicts none.
func TestPlacementBudget(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Hour)
	for _, name := range []string{"a", "b", "c", "d"} {
		p.publish(name)
	}
	a, b := p.place("a", 0, 30), p.place("b", 0, 30)
	held := p.place("c", 0, 30)
	other := p.place("d", 1, 100)
	p.release(b)
	p.now = p.now.Add(time.Second)
	p.release(a)
	_, _, err := p.ask("d", 0, 80, 0, 1, nil)
	require.ErrorIs(t, err, catalog.ErrNoRoom)
	require.Zero(t, p.closed)
	p.place("d", 0, 40)
	require.Equal(t, 1, p.closed, "b was unused first")
	require.EqualValues(t, 1, p.stats().Evictions)
	again := p.place("a", 0, 30)
	require.EqualValues(t, 1, p.stats().Hits, "a has stayed")
	_, _, err = p.ask("b", 0, 30, 0, 1, nil)
	require.ErrorIs(t, err, catalog.ErrNoRoom)
	p.release(again)
	p.release(held)
	p.release(other)
	require.EqualValues(t, 60, p.Reclaim(gpus[0].UUID, 31), "the device refuses memory: both are unused")
	require.EqualValues(t, 3, p.closed)
	require.Zero(t, p.Reclaim(gpus[0].UUID, 1), "d is held")
}

// A holder has no more bytes of placements than it may. Further leases on the same placement are free.
func TestPlacementLimitOfHolder(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Hour)
	p.publish("a")
	p.publish("b")
	l, _, err := p.ask("a", 0, 30, 50, 1, nil)
	require.NoError(t, err)
	p.Placed(l, copied{&p.closed}, 0, nil)
	_, made, err := p.ask("a", 0, 30, 50, 1, nil)
	require.NoError(t, err)
	require.False(t, made)
	_, _, err = p.ask("b", 1, 30, 50, 1, nil)
	require.ErrorIs(t, err, catalog.ErrHolderFull)
	_, _, err = p.ask("b", 1, 30, 50, 2, nil)
	require.NoError(t, err)
}

// The copy is stopped when its last waiter leaves. Its bytes are free at once, and a later copy is a new one.
func TestPlacementWithoutWaiters(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Hour)
	p.publish("m")
	var stopped, stoppedAgain bool
	a, made, err := p.ask("m", 0, 100, 0, 1, &stopped)
	require.NoError(t, err)
	require.True(t, made)
	b, made, err := p.ask("m", 0, 100, 0, 2, nil)
	require.NoError(t, err)
	require.False(t, made)
	p.release(a)
	require.False(t, stopped)
	p.release(b)
	require.True(t, stopped)
	next, made, err := p.ask("m", 0, 100, 0, 1, &stoppedAgain)
	require.NoError(t, err)
	require.True(t, made)
	p.Placed(a, copied{&p.closed}, 0, nil) // it was complete before it was stopped
	require.Equal(t, 1, p.closed)
	p.Placed(next, copied{&p.closed}, 0, nil)
	require.NoError(t, next.Err())
	require.False(t, stoppedAgain)
	require.Equal(t, 1, p.closed)
}

// A failed copy is reported to all waiters, and the next request starts another one.
func TestPlacementFails(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Hour)
	p.publish("m")
	broken := errors.New("broken")
	a, _, err := p.ask("m", 0, 100, 0, 1, nil)
	require.NoError(t, err)
	b, _, err := p.ask("m", 0, 100, 0, 2, nil)
	require.NoError(t, err)
	p.Placed(a, nil, 0, broken)
	for _, l := range []*catalog.Lease{a, b} {
		<-l.Made()
		require.ErrorIs(t, l.Err(), broken)
		p.release(l)
	}
	require.EqualValues(t, 1, p.stats().Failures)
	p.place("m", 0, 100)
}

// Placements end with their version: when it is superseded and not held, when it is withdrawn, and with the catalog.
func TestPlacementEndsWithVersion(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Hour)
	p.publish("m")
	l := p.place("m", 0, 10)
	p.release(p.place("m", 1, 10))
	require.NoError(t, p.Withdraw("m"))
	require.Zero(t, p.closed, "a lease on a placement holds the version, and the version its placements")
	info, err := p.Info("m")
	require.NoError(t, err)
	require.Len(t, info.Versions[0].Placements, 2)
	require.Equal(t, []driver.UUID{gpus[0].UUID}, info.Versions[0].Holders[0].Placements)
	p.release(l)
	require.Equal(t, 2, p.closed)

	p.publish("m")
	p.place("m", 0, 10)
	var stopped bool
	making, _, err := p.ask("m", 1, 10, 0, 1, &stopped)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.True(t, stopped)
	require.Equal(t, 3, p.closed)
	p.Placed(making, copied{&p.closed}, 0, nil)
	require.Equal(t, 4, p.closed)
}

// A device without a place, and a lease that has ended, are refused.
func TestPlacementIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlaceable(t, time.Hour)
	p.publish("m")
	origin, err := p.Acquire("m", 0, catalog.Holder{ID: 1})
	require.NoError(t, err)
	_, _, err = p.Place(origin, driver.UUID{9}, 1, 0, func() {})
	require.ErrorIs(t, err, catalog.ErrNoPlace)
	p.release(origin)
	_, _, err = p.Place(origin, gpus[0].UUID, 1, 0, func() {})
	require.ErrorIs(t, err, catalog.ErrNotFound)
}
