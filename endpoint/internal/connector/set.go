package connector

import (
	"context"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
)

// Dependent is one object that a client keeps across connections. All methods except Resume and End are called with the
// lock of its set and must return at once.
type Dependent interface {
	comparable
	// NeedsResume reports whether the object must be resumed on l. It returns false if l already has it or if it no
	// longer needs a connection.
	NeedsResume(l *link.Link) bool
	// Resume resumes the object on l. If it fails, the connection is closed.
	Resume(ctx context.Context, l *link.Link) error
	// Lost notifies the object that a connection has ended. The object may be on another connection.
	Lost(l *link.Link)
	// End ends the object because the client was closed. It is called without the lock.
	End()
}

// Set implements [Dependents] for one kind of objects. The zero value is an empty set.
type Set[T Dependent] struct {
	mu    sync.Mutex
	all   map[T]struct{}
	ended bool // the client was closed
}

// Add adds an object, which is then resumed on each new connection. It returns false if the client was closed.
func (s *Set[T]) Add(d T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if s.all == nil {
		s.all = map[T]struct{}{}
	}
	s.all[d] = struct{}{}
	return true
}

// Remove removes an object that has ended.
func (s *Set[T]) Remove(d T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, d)
}

// Len returns the number of objects.
func (s *Set[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Each calls do for each object while holding the set's lock.
func (s *Set[T]) Each(do func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.all {
		do(d)
	}
}

// Needed implements [Dependents].
func (s *Set[T]) Needed() bool { return s.Len() > 0 }

// Resume implements [Dependents].
func (s *Set[T]) Resume(l *link.Link) (jobs []func(context.Context) error) {
	s.Each(func(d T) {
		if d.NeedsResume(l) {
			jobs = append(jobs, func(ctx context.Context) error { return d.Resume(ctx, l) })
		}
	})
	return jobs
}

// Lost implements [Dependents].
func (s *Set[T]) Lost(l *link.Link) { s.Each(func(d T) { d.Lost(l) }) }

// End implements [Dependents].
func (s *Set[T]) End() {
	s.mu.Lock()
	all := s.all
	s.all, s.ended = nil, true
	s.mu.Unlock()
	for d := range all {
		d.End()
	}
}
