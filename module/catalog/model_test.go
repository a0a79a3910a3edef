package catalog_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// modelVersion is a version in the reference model. It is never removed.
type modelVersion struct {
	name      string
	number    uint64
	probe     *probe
	leases    map[uint64]uint64 // lease to holder
	withdrawn bool
	freed     bool
}

// model is the reference model: plain lists with linear search, and every rule written out once.
type model struct {
	retain   int
	versions []*modelVersion
	last     map[string]uint64
	events   []catalog.Event // since the last read of the watcher
	seq      uint64
}

func (m *model) of(name string) []*modelVersion {
	var of []*modelVersion
	for _, v := range m.versions {
		if v.name == name && !v.freed {
			of = append(of, v)
		}
	}
	return of
}

func (m *model) current(name string) *modelVersion {
	for _, v := range m.of(name) {
		if v.number == m.last[name] && !v.withdrawn {
			return v
		}
	}
	return nil
}

// settle frees unreachable versions.
func (m *model) settle() {
	for name := range m.last {
		spare := 0
		for _, v := range slices.Backward(m.of(name)) {
			if v == m.current(name) || len(v.leases) > 0 {
				continue
			}
			if spare++; v.withdrawn || spare > m.retain {
				v.freed = true
			}
		}
	}
}

func (m *model) note(kind catalog.EventKind, name string) {
	m.seq++
	m.events = append(m.events, catalog.Event{Seq: m.seq, Kind: kind, Name: name, Version: m.last[name]})
}

// coalesced returns the events that a watcher must receive for those since its last read.
func (m *model) coalesced() []catalog.Event {
	var out []catalog.Event
	for i, e := range m.events {
		replaced := slices.ContainsFunc(m.events[i+1:], func(later catalog.Event) bool {
			return later.Name == e.Name && (later.Kind == e.Kind || later.Kind == catalog.Withdrawn)
		})
		if !replaced {
			out = append(out, e)
		}
	}
	m.events = nil
	return out
}

// lease is one that the test holds.
type lease struct {
	id, holder uint64
	v          *modelVersion
}

// run is one random sequence against both.
type run struct {
	t      *testing.T
	rng    *rand.Rand
	c      *catalog.Catalog
	m      model
	w      *catalog.Watcher
	leases []lease
	freed  map[string]int
}

var modelNames = []string{"a", "b", "c"}

func (r *run) publish(name string) {
	v := &modelVersion{name: name, probe: &probe{bytes: 1 + r.rng.Int64N(100)}, leases: map[uint64]uint64{}}
	number, err := r.c.Publish(name, v.probe.stateDict(r.t), catalog.Origin{})
	require.NoError(r.t, err)
	r.m.last[name]++
	require.Equal(r.t, r.m.last[name], number, "versions count up and never repeat")
	v.number = number
	r.m.versions = append(r.m.versions, v)
	r.m.note(catalog.Published, name)
}

func (r *run) withdraw(name string) {
	err := r.c.Withdraw(name)
	if r.m.current(name) == nil {
		require.ErrorIs(r.t, err, catalog.ErrNotFound)
		return
	}
	require.NoError(r.t, err)
	for _, v := range r.m.of(name) {
		v.withdrawn = true
	}
	r.m.note(catalog.Withdrawn, name)
}

func (r *run) acquire(name string) {
	version := uint64(0)
	if r.rng.IntN(2) == 0 {
		version = r.rng.Uint64N(r.m.last[name] + 2)
	}
	holder := 1 + r.rng.Uint64N(4)
	want := r.m.current(name)
	missing := catalog.ErrNotFound
	if want != nil && version != 0 {
		missing = catalog.ErrNoVersion
		of := r.m.of(name)
		i := slices.IndexFunc(of, func(v *modelVersion) bool { return v.number == version && !v.withdrawn })
		if want = nil; i >= 0 {
			want = of[i]
		}
	}
	l, err := r.c.Acquire(name, version, catalog.Holder{ID: holder})
	if want == nil {
		require.ErrorIs(r.t, err, missing)
		return
	}
	require.NoError(r.t, err)
	require.Equal(r.t, want.number, l.Version)
	want.leases[l.ID] = holder
	r.leases = append(r.leases, lease{l.ID, holder, want})
}

func (r *run) release() {
	if len(r.leases) == 0 {
		return
	}
	i := r.rng.IntN(len(r.leases))
	l := r.leases[i]
	_, held := l.v.leases[l.id]
	switch {
	case !held: // released with its session
		require.ErrorIs(r.t, r.c.Release(l.id, l.holder), catalog.ErrNotFound)
	case r.rng.IntN(4) == 0:
		require.ErrorIs(r.t, r.c.Release(l.id, l.holder+1), catalog.ErrNotHolder)
		return
	default:
		require.NoError(r.t, r.c.Release(l.id, l.holder))
		delete(l.v.leases, l.id)
	}
	r.leases = slices.Delete(r.leases, i, i+1)
}

func (r *run) gone(holder uint64) {
	want := 0
	for _, v := range r.m.versions {
		for id, h := range v.leases {
			if h == holder {
				delete(v.leases, id)
				want++
			}
		}
	}
	require.Equal(r.t, want, r.c.ReleaseHolder(holder))
}

// check compares the catalog with the model.
func (r *run) check() {
	r.m.settle()
	var want []string
	for _, v := range r.m.versions {
		closed := int32(0)
		if v.freed {
			closed = 1
		}
		require.Equal(r.t, closed, v.probe.closed.Load(), "version %d of %s: times closed", v.number, v.name)
		require.Equal(r.t, int(closed), r.freed[fmt.Sprint(v.name, v.number)], "version %d of %s: times freed", v.number, v.name)
		if !v.freed {
			want = append(want, fmt.Sprint(v.name, v.number, v.withdrawn, v == r.m.current(v.name), len(v.leases)))
		}
	}
	var got []string
	for _, info := range r.c.List() {
		for _, v := range info.Versions {
			leases := 0
			for _, h := range v.Holders {
				leases += h.Leases
			}
			got = append(got, fmt.Sprint(info.Name, v.Version, v.Withdrawn, v.Current, leases))
		}
	}
	require.ElementsMatch(r.t, want, got)
}

func (r *run) step() {
	name := modelNames[r.rng.IntN(len(modelNames))]
	switch n := r.rng.IntN(100); {
	case n < 25:
		r.publish(name)
	case n < 60:
		r.acquire(name)
	case n < 80:
		r.release()
	case n < 85:
		r.gone(1 + r.rng.Uint64N(4))
	case n < 90:
		r.withdraw(name)
	default:
		got, want := r.w.Next(), r.m.coalesced()
		slices.SortFunc(want, func(a, b catalog.Event) int { return cmp.Compare(a.Seq, b.Seq) })
		require.Equal(r.t, len(want), len(got))
		if len(want) > 0 {
			require.Equal(r.t, want, got)
		}
	}
	r.check()
}

// Random sequences on the catalog and on a model of it agree after each step: which versions are closed and how often,
// which can be acquired, and which events a watcher receives.
func TestRandomSequencesAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		retain := int(seed % 4)
		r := &run{t: t, rng: rand.New(rand.NewPCG(seed, 1)), freed: map[string]int{}}
		r.m = model{retain: retain, last: map[string]uint64{}}
		r.c = catalog.New(catalog.Options{Retain: catalog.Retention{Versions: retain}, Freed: func(name string, version uint64, err error) {
			r.freed[fmt.Sprint(name, version)]++
		}})
		r.w = r.c.Subscribe(nil, nil)
		for range 120 {
			r.step()
		}
		require.NoError(t, r.c.Close())
		for _, v := range r.m.versions {
			require.Equal(t, int32(1), v.probe.closed.Load(), "seed %d: version %d of %s after Close", seed, v.number, v.name)
		}
	}
}
