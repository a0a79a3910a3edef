package cuda

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// recordings are the captures in progress. An object that is used in one of them counts as used by all. A release may
// therefore wait longer than necessary, never too short.
var recordings recordingSet

type recordingSet struct {
	// begin is held while a capture begins or spreads to another stream, and while an event is recorded for a whole
	// context. It is locked before the lock of a track.
	begin  sync.Mutex
	active atomic.Int32

	mu  sync.Mutex
	all map[*recording]struct{}
}

// recording collects the objects that a capture uses.
type recording struct {
	used  map[*lifetime]struct{}
	hosts []uintptr // host functions, each with a reference for this recording
}

func (s *recordingSet) start() *recording {
	r := &recording{used: map[*lifetime]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*recording]struct{}{}
	}
	s.all[r] = struct{}{}
	s.active.Add(1)
	return r
}

// stop ends a recording and releases its references to host functions.
func (s *recordingSet) stop(r *recording) {
	s.mu.Lock()
	delete(s.all, r)
	s.active.Add(-1)
	hosts := r.hosts
	r.hosts = nil
	s.mu.Unlock()
	for _, id := range hosts {
		hostCalls.release(id)
	}
}

// addHost makes a host function part of all captures in progress. At least one is.
func (s *recordingSet) addHost(id uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.all {
		hostCalls.retain(id)
		r.hosts = append(r.hosts, id)
	}
}

// takeHosts returns the host functions of a recording with their references.
func (s *recordingSet) takeHosts(r *recording) []uintptr {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := r.hosts
	r.hosts = nil
	return hosts
}

func (s *recordingSet) add(l *lifetime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.all {
		r.used[l] = struct{}{}
	}
}

func (s *recordingSet) used(r *recording) []*lifetime {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(r.used))
}

// lockCapture keeps releases from recording an event while the stream begins to capture.
func (t *track) lockCapture() (unlock func()) {
	recordings.begin.Lock()
	t.mu.Lock()
	return func() {
		t.mu.Unlock()
		recordings.begin.Unlock()
	}
}
