package catalog

import (
	"cmp"
	"maps"
	"slices"
)

// EventKind is the kind of an event.
type EventKind uint8

const (
	// Published means that a name has a new newest version.
	Published EventKind = iota + 1
	// Withdrawn means that a name was removed from the catalog.
	Withdrawn
	// Overflow means that events were dropped because the watcher did not read them. It should list the catalog. Name
	// and version are empty.
	Overflow
)

// String returns "published", "withdrawn" or "overflow".
func (k EventKind) String() string {
	switch k {
	case Published:
		return "published"
	case Withdrawn:
		return "withdrawn"
	case Overflow:
		return "overflow"
	}
	return "unknown"
}

// Event is a change of a name.
type Event struct {
	// Seq numbers all events of the catalog from 1, with or without watchers. A watcher sees ascending numbers with
	// gaps: events of other names, and events replaced by newer ones.
	Seq uint64
	// Kind is the kind of the event.
	Kind EventKind
	// Name is the changed name.
	Name string
	// Version is the published version, or the newest one when the name was withdrawn.
	Version uint64
}

// DefaultPendingNames is the default of Options.PendingNames.
const DefaultPendingNames = 4096

// Watcher collects events of some or all names between calls of Next. For each name it keeps at most the last
// withdrawal and the last publication after it, so its size is limited by the number of names, and that by
// [Options.PendingNames]. Its methods are safe for concurrent use.
type Watcher struct {
	c     *Catalog
	names []string // nil means all
	wake  func()

	// Guarded by the catalog's lock.
	pending  map[string]pending
	overflow uint64 // the last dropped event
	awake    bool   // wake was called since the last Next
}

// pending holds the pending events of one name. A missing event has sequence number 0.
type pending struct{ withdrawn, published Event }

// watchers maps names to their watchers.
type watchers struct {
	all    map[*Watcher]struct{}
	byName map[string]map[*Watcher]struct{}
}

func newWatchers() watchers {
	return watchers{all: make(map[*Watcher]struct{}), byName: make(map[string]map[*Watcher]struct{})}
}

// count returns the number of subscriptions.
func (w watchers) count() int {
	distinct := maps.Clone(w.all)
	for _, of := range w.byName {
		maps.Copy(distinct, of)
	}
	return len(distinct)
}

// Subscribe collects events of the given names, which need not exist; nil means all names, an empty list none. wake, if
// not nil, is called when events are pending, and not again until [Watcher.Next] was called. It runs without the lock
// on the goroutine that published or withdrew, so it must return at once, for example by a non-blocking send on a
// buffered channel. Two calls may overlap, and one may arrive after Next has taken the events or after Close.
//
// Only later events are collected. Subscribe first and list afterwards, so that no event is missed. The caller owns the
// watcher and closes it. A watcher of a closed catalog stays empty.
func (c *Catalog) Subscribe(names []string, wake func()) *Watcher {
	w := &Watcher{c: c, names: slices.Clone(names), wake: wake, pending: make(map[string]pending)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return w
	}
	if w.names == nil {
		c.watchers.all[w] = struct{}{}
	}
	for _, name := range w.names {
		of := c.watchers.byName[name]
		if of == nil {
			of = make(map[*Watcher]struct{})
			c.watchers.byName[name] = of
		}
		of[w] = struct{}{}
	}
	return w
}

// Next returns the pending events, sorted by sequence number. It never blocks.
func (w *Watcher) Next() []Event {
	w.c.mu.Lock()
	waiting, overflow := w.pending, w.overflow
	w.pending, w.overflow, w.awake = make(map[string]pending), 0, false
	w.c.mu.Unlock()

	events := make([]Event, 0, len(waiting)+1)
	if overflow != 0 {
		events = append(events, Event{Seq: overflow, Kind: Overflow})
	}
	for _, p := range waiting {
		for _, e := range [...]Event{p.withdrawn, p.published} {
			if e.Seq != 0 {
				events = append(events, e)
			}
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events
}

// Close ends the subscription and drops pending events. A second Close does nothing.
func (w *Watcher) Close() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	delete(w.c.watchers.all, w)
	for _, name := range w.names {
		of := w.c.watchers.byName[name]
		delete(of, w)
		if len(of) == 0 {
			delete(w.c.watchers.byName, name)
		}
	}
	clear(w.pending)
	w.overflow = 0
}

// tellLocked records an event at all watchers of the name and returns the wakes to call outside the lock.
func (c *Catalog) tellLocked(kind EventKind, name string, version uint64) []func() {
	c.seq++
	e := Event{Seq: c.seq, Kind: kind, Name: name, Version: version}
	var wake []func()
	for _, set := range [...]map[*Watcher]struct{}{c.watchers.all, c.watchers.byName[name]} {
		for w := range set {
			w.noteLocked(e, c.opts.PendingNames)
			if !w.awake && w.wake != nil {
				w.awake = true
				wake = append(wake, w.wake)
			}
		}
	}
	return wake
}

// noteLocked adds e to the pending events and drops those that it replaces.
func (w *Watcher) noteLocked(e Event, limit int) {
	p, known := w.pending[e.Name]
	if !known && len(w.pending) >= limit {
		w.pending = make(map[string]pending)
		w.overflow = e.Seq
		return
	}
	if e.Kind == Withdrawn {
		p = pending{withdrawn: e}
	} else {
		p.published = e
	}
	w.pending[e.Name] = p
}

// wakeAll calls the wakes that tellLocked returned.
func wakeAll(wake []func()) {
	for _, f := range wake {
		f()
	}
}
