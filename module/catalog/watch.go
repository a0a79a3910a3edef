package catalog

import (
	"cmp"
	"maps"
	"slices"
)

// EventKind says what happened.
type EventKind uint8

const (
	// Published is a new version of a name, which is now the newest.
	Published EventKind = iota + 1
	// Withdrawn is a name that was taken out of the catalog.
	Withdrawn
	// Overflow tells that the watcher did not look for so long that events were dropped: what it knows is no longer
	// complete, and it should ask for the list. Name and version are empty.
	Overflow
)

// String is "published", "withdrawn" or "overflow".
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

// Event is something that happened to a name.
type Event struct {
	// Seq numbers all events of the catalog from 1, whether or not anybody watches. A watcher sees rising numbers with
	// gaps: events of other names, and events that newer ones replaced.
	Seq uint64
	// Kind says what happened.
	Kind EventKind
	// Name is the name it happened to.
	Name string
	// Version is the version that was published, or that was the newest when the name was withdrawn.
	Version uint64
}

// DefaultPendingNames is how many names a watcher may have events waiting of, unless [Options] say otherwise.
const DefaultPendingNames = 4096

// Watcher collects events of some or all names until somebody looks. It keeps, for each name, at most the last
// withdrawal and the last publication after it, so what it holds is bounded by the number of names, and that by
// [Options.PendingNames]. Its methods are safe for concurrent use.
type Watcher struct {
	c     *Catalog
	names []string // nil for all
	wake  func()

	// Guarded by the catalog's lock.
	pending  map[string]pending
	overflow uint64 // the last event that was dropped
	awake    bool   // wake was called and Next was not
}

// pending is what a watcher has waiting of one name. An event that is not there has sequence number 0.
type pending struct{ withdrawn, published Event }

// watchers finds the watchers of a name.
type watchers struct {
	all    map[*Watcher]struct{}
	byName map[string]map[*Watcher]struct{}
}

func newWatchers() watchers {
	return watchers{all: make(map[*Watcher]struct{}), byName: make(map[string]map[*Watcher]struct{})}
}

// count is the number of subscriptions.
func (w watchers) count() int {
	distinct := maps.Clone(w.all)
	for _, of := range w.byName {
		maps.Copy(distinct, of)
	}
	return len(distinct)
}

// Subscribe starts to collect events of the given names, which need not exist; nil means all names, and an empty list
// none. wake, if not nil, is called when events are waiting and is not called again until [Watcher.Next] has been: it
// runs outside the lock, on the goroutine that published or withdrew, so it must return at once. A send on a buffered
// channel that gives up when the channel is full is the usual one. Two calls may overlap, and one may come late, after
// Next has taken the events or after Close.
//
// Only events from now on are collected. Subscribe first and list afterwards: then nothing falls between the two. The
// caller owns the watcher and closes it. A watcher of a closed catalog stays empty.
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

// Next takes the waiting events, in the order of their sequence numbers; none if nothing happened. It never blocks.
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

// Close ends the subscription and drops what is waiting. A second Close does nothing.
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

// tellLocked notes an event with all watchers of the name and returns the wakes to call outside the lock.
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

// noteLocked adds e to what is waiting and drops what it replaces.
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

// wakeAll calls what tellLocked returned.
func wakeAll(wake []func()) {
	for _, f := range wake {
		f()
	}
}
