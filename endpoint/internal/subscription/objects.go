package subscription

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// objectsSource holds objects that were destroyed while the client had references to them. The number of those
// references bounds it. A client has one such source at a time.
type objectsSource struct {
	set *Set

	mu   sync.Mutex
	gone []message.ObjectGone
	wake func()
}

// Weight implements Source. It is 0 because every client with references has such a source.
func (*objectsSource) Weight() int { return 0 }

// Open implements Source. The caller holds the set's lock.
func (o *objectsSource) Open(wake func()) {
	o.wake = wake
	o.set.objects = o
}

// Opening implements Source.
func (*objectsSource) Opening() bool { return false }

// Close implements Source. The caller holds the set's lock.
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

// note records an event until Take returns it.
func (o *objectsSource) note(gone message.ObjectGone) {
	o.mu.Lock()
	o.gone = append(o.gone, gone)
	o.mu.Unlock()
	o.wake()
}

// AddObjects subscribes a request to destroyed objects; events start after its answer. Only the goroutine that reads
// the client's requests calls it. It fails with [status.ErrLimit] if the client already has such a subscription.
func (s *Set) AddObjects(request uint64) (*Subscription, error) {
	s.mu.Lock()
	watched := s.objects != nil
	s.mu.Unlock()
	if watched {
		return nil, fmt.Errorf("%w: this client already watches objects; end that watch first", status.ErrLimit)
	}
	return s.Add(request, &objectsSource{set: s})
}

// ObjectGone reports an object that was destroyed while the client had references to it. why may be empty. It returns
// at once.
func (s *Set) ObjectGone(id, why string) {
	s.mu.Lock()
	objects := s.objects
	s.mu.Unlock()
	if objects != nil {
		objects.note(message.ObjectGone{ID: id, Reason: why})
	}
}
