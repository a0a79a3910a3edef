package connector

import (
	"context"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
)

// Dependent is one thing that lives on the connections of a client. All methods but Resume are called with the lock of
// its set, and return at once.
type Dependent interface {
	comparable
	// On reports whether there is nothing to take up on l: it is there already, or needs no connection any more.
	On(l *link.Link) bool
	// Resume takes it up on l. An error is of the connection, which is given up.
	Resume(ctx context.Context, l *link.Link) error
	// Lost tells it that a connection is over, which need not be the one that it is on.
	Lost(l *link.Link)
	// End ends it, as the client was closed. It is called without the lock.
	End()
}

// Set is [Dependents] of one kind. The zero value is empty and ready.
type Set[T Dependent] struct {
	mu    sync.Mutex
	all   map[T]struct{}
	ended bool // the client was closed
}

// Add makes a thing known, so that it is taken up on each next connection. It is false where the client was closed.
func (s *Set[T]) Add(thing T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if s.all == nil {
		s.all = map[T]struct{}{}
	}
	s.all[thing] = struct{}{}
	return true
}

// Remove forgets a thing that has ended.
func (s *Set[T]) Remove(thing T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, thing)
}

// Len is how many there are.
func (s *Set[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Each calls do for each of them, with the set's lock.
func (s *Set[T]) Each(do func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for thing := range s.all {
		do(thing)
	}
}

// Needed implements [Dependents].
func (s *Set[T]) Needed() bool { return s.Len() > 0 }

// Resume implements [Dependents].
func (s *Set[T]) Resume(l *link.Link) (jobs []func(context.Context) error) {
	s.Each(func(thing T) {
		if !thing.On(l) {
			jobs = append(jobs, func(ctx context.Context) error { return thing.Resume(ctx, l) })
		}
	})
	return jobs
}

// Lost implements [Dependents].
func (s *Set[T]) Lost(l *link.Link) { s.Each(func(thing T) { thing.Lost(l) }) }

// End implements [Dependents].
func (s *Set[T]) End() {
	s.mu.Lock()
	all := s.all
	s.all, s.ended = nil, true
	s.mu.Unlock()
	for thing := range all {
		thing.End()
	}
}
