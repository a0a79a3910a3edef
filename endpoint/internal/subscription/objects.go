package subscription

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// objectsSource has the objects that were destroyed while the client had references to them, so at most as many as it
// had. A client has one at a time.
type objectsSource struct {
	set *Set

	mu   sync.Mutex
	gone []message.ObjectGone
	wake func()
}

// Weight implements Source. It is nothing: every client that keeps references has one, whatever else it watches.
func (*objectsSource) Weight() int { return 0 }

// Open implements Source. The set is locked.
func (o *objectsSource) Open(wake func()) {
	o.wake = wake
	o.set.objects = o
}

// Opening implements Source.
func (*objectsSource) Opening() bool { return false }

// Close implements Source. The set is locked.
func (o *objectsSource) Close() { o.set.objects = nil }

// Take implements Source.
func (o *objectsSource) Take() (events []any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, gone := range o.gone {
		events = append(events, gone)
	}
	o.gone = nil
	return events
}

// note keeps news until it is taken.
func (o *objectsSource) note(gone message.ObjectGone) {
	o.mu.Lock()
	o.gone = append(o.gone, gone)
	o.mu.Unlock()
	o.wake()
}

// AddObjects makes a request get news of destroyed objects, once it is answered. Only the goroutine that reads the
// client's requests calls it. A second one at a time is [status.ErrLimit].
func (s *Set) AddObjects(request uint64) (*Subscription, error) {
	s.mu.Lock()
	watched := s.objects != nil
	s.mu.Unlock()
	if watched {
		return nil, fmt.Errorf("%w: this client watches objects already; end that watch before another begins", status.ErrLimit)
	}
	return s.Add(request, &objectsSource{set: s})
}

// ObjectGone notes an object that was destroyed while the client had references to it, and why if that is known. It
// returns at once.
func (s *Set) ObjectGone(id, why string) {
	s.mu.Lock()
	objects := s.objects
	s.mu.Unlock()
	if objects != nil {
		objects.note(message.ObjectGone{ID: id, Reason: why})
	}
}
