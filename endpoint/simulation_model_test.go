package endpoint

import (
	"fmt"
	"sync"
	"time"
)

// simModel defines what clients of a simulation may observe. It records requests with their times and outcomes, and
// compares them with each answer; it never uses the server's own information. Times are those of the bubble.
//
// A publication is identified by its stamp: the value of all elements of its tensors.
type simModel struct {
	mu      sync.Mutex
	stamps  int64
	written map[int64]*simPublication
	names   map[simName]*simHistory
	runs    map[int64]int // of calls and tasks by their unique argument
	results map[int64]simRun
	dropped map[string][]simSpan // when the cached result of a key was invalidated
	broken  []string
}

// simName is a name in one life of the server.
type simName struct{ server, name string }

// simSpan is the time of an operation from its call to its return.
type simSpan struct{ begin, end time.Time }

// simPublication is an attempt to publish.
type simPublication struct {
	name string
	span simSpan
}

// simHistory holds the observations of a name.
type simHistory struct {
	stamps    map[uint64]int64 // by version
	seen      []simSeen        // versions that were the newest at some time in a span
	withdrawn []simSpan        // attempts; the end is zero if the outcome is unknown
	absent    []simSpan        // when the name was not found
}

// simSeen is a version that was the newest at a moment in span, and stays the newest until a newer one or a withdrawal.
type simSeen struct {
	version uint64
	span    simSpan
}

// simRun is a run of the cached function.
type simRun struct {
	key    string
	server string
	began  time.Time
}

func newSimModel() *simModel {
	return &simModel{
		written: map[int64]*simPublication{}, names: map[simName]*simHistory{}, runs: map[int64]int{}, results: map[int64]simRun{},
		dropped: map[string][]simSpan{},
	}
}

// fail records an invalid observation.
func (m *simModel) failLocked(format string, args ...any) {
	m.broken = append(m.broken, fmt.Sprintf(format, args...))
}

// failures returns the invalid observations.
func (m *simModel) failures() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken
}

func (m *simModel) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(format, args...)
}

// number returns a unique number.
func (m *simModel) number() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stamps++
	return m.stamps
}

// publishes records the start of an attempt.
func (m *simModel) publishes(stamp int64, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[stamp] = &simPublication{name: name, span: simSpan{begin: time.Now()}}
}

// published records that an attempt succeeded as a version. The server is empty if unknown.
func (m *simModel) published(stamp int64, server string, version uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.written[stamp]
	p.span.end = time.Now()
	if server != "" {
		m.stampLocked(simName{server, p.name}, version, stamp)
		m.seenLocked(simName{server, p.name}, simSeen{version, p.span})
	}
}

func (m *simModel) historyLocked(at simName) *simHistory {
	h := m.names[at]
	if h == nil {
		h = &simHistory{stamps: map[uint64]int64{}}
		m.names[at] = h
	}
	return h
}

// stampLocked checks that a version has one content, and a content is in one version.
func (m *simModel) stampLocked(at simName, version uint64, stamp int64) {
	h := m.historyLocked(at)
	for v, s := range h.stamps {
		if (v == version) != (s == stamp) {
			m.failLocked("version %d of %s has content %d, and version %d has content %d", version, at.name, stamp, v, s)
		}
	}
	h.stamps[version] = stamp
}

// seenLocked checks that the newest version never becomes older.
func (m *simModel) seenLocked(at simName, saw simSeen) {
	h := m.historyLocked(at)
	for _, before := range h.seen {
		if before.span.end.Before(saw.span.begin) && before.version > saw.version {
			m.failLocked("version %d of %s was the newest after version %d was", saw.version, at.name, before.version)
		}
	}
	h.seen = append(h.seen, saw)
}

// acquired checks a version that was requested as the newest.
func (m *simModel) acquired(at simName, version uint64, stamp int64, span simSpan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.written[stamp]
	switch {
	case p == nil:
		m.failLocked("version %d of %s has content %d, which nobody published", version, at.name, stamp)
		return
	case p.name != at.name:
		m.failLocked("version %d of %s has content %d, which was published as %s", version, at.name, stamp, p.name)
	case p.span.begin.After(span.end):
		m.failLocked("version %d of %s was there before it was published", version, at.name)
	}
	m.stampLocked(at, version, stamp)
	m.seenLocked(at, simSeen{version, span})
	for _, w := range m.historyLocked(at).withdrawn {
		if !w.end.IsZero() && p.span.end.Before(w.begin) && !p.span.end.IsZero() && w.end.Before(span.begin) {
			m.failLocked("version %d of %s was acquired after it was withdrawn", version, at.name)
		}
	}
}

// absent records that a name was not found.
func (m *simModel) absent(at simName, span simSpan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.historyLocked(at)
	h.absent = append(h.absent, span)
}

// checkAbsent checks that names which were not found had not been published, or had been withdrawn. It is called at the
// end, when all attempts to withdraw are known.
func (m *simModel) checkAbsent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, h := range m.names {
		for _, span := range h.absent {
			for _, seen := range h.seen {
				if seen.span.end.Before(span.begin) && !h.withdrawnBetween(seen.span.begin, span.end) {
					m.failLocked("%s was not found, though version %d was there before and nobody withdrew it", at.name, seen.version)
				}
			}
		}
	}
}

// withdrawnBetween reports whether an attempt to withdraw may have had its effect in that time.
func (h *simHistory) withdrawnBetween(begin, end time.Time) bool {
	for _, w := range h.withdrawn {
		if (w.end.IsZero() || !w.end.Before(begin)) && !w.begin.After(end) {
			return true
		}
	}
	return false
}

// withdrew records an attempt to withdraw. With certain the server has confirmed it; otherwise it may have taken effect
// at any time after it began.
func (m *simModel) withdrew(at simName, span simSpan, certain bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !certain {
		span.end = time.Time{}
	}
	h := m.historyLocked(at)
	h.withdrawn = append(h.withdrawn, span)
}

// ran records a run of a function with a unique argument.
func (m *simModel) ran(argument int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs[argument]++; m.runs[argument] > 1 {
		m.failLocked("the function ran %d times for the call with %d", m.runs[argument], argument)
	}
}

// answered checks the result of a call: the function has run, once.
func (m *simModel) answered(argument, result int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if result != argument+1 || m.runs[argument] != 1 {
		m.failLocked("the call with %d was answered with %d after %d runs", argument, result, m.runs[argument])
	}
}

// ranCached records a run of the cached function and returns its number, which is its result.
func (m *simModel) ranCached(server, key string) int64 {
	number := m.number()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.results[number] = simRun{key: key, server: server, began: time.Now()}
	return number
}

// invalidated records that the results of a key were dropped.
func (m *simModel) invalidated(server, key string, span simSpan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped[server+" "+key] = append(m.dropped[server+" "+key], span)
}

// cached checks the result of a call of the cached function.
func (m *simModel) cached(key string, number int64, span simSpan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	run, ok := m.results[number]
	switch {
	case !ok:
		m.failLocked("the cached result %d of %s was never made", number, key)
		return
	case run.key != key:
		m.failLocked("the result of %s was given out for %s", run.key, key)
	}
	for _, d := range m.dropped[run.server+" "+key] {
		if run.began.Before(d.begin) && d.end.Before(span.begin) {
			m.failLocked("the result %d of %s was given out after it was invalidated", number, key)
		}
	}
}

// holds checks that a held version has its original content.
func (m *simModel) holds(at simName, version uint64, stamp int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stampLocked(at, version, stamp)
}
