package endpoint

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// objectsSource tells of objects that were destroyed while the session had references to them, so of at most as many as
// it had. A session has one at a time.
type objectsSource struct {
	events *events

	mu   sync.Mutex
	gone []message.ObjectGone
	wake func()
}

// weight implements source. It is nothing: every client that keeps references has one, whatever else it watches.
func (*objectsSource) weight() int { return 0 }

// open implements source. The session's events are locked.
func (o *objectsSource) open(wake func()) {
	o.wake = wake
	o.events.objects = o
}

func (*objectsSource) opening() bool { return false }

// close implements source. The session's events are locked.
func (o *objectsSource) close() { o.events.objects = nil }

// take implements source.
func (o *objectsSource) take() (events []any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, gone := range o.gone {
		events = append(events, gone)
	}
	o.gone = nil
	return events
}

// note keeps news until the pump takes it.
func (o *objectsSource) note(gone message.ObjectGone) {
	o.mu.Lock()
	o.gone = append(o.gone, gone)
	o.mu.Unlock()
	o.wake()
}

// followObjects makes a request get news of destroyed objects, once it is answered.
func (ses *session) followObjects(request uint64) (*subscription, error) {
	e := &ses.events
	e.mu.Lock()
	watched := e.objects != nil
	e.mu.Unlock() // the session's reader alone comes here
	if watched {
		return nil, fmt.Errorf("%w: this client watches objects already; end that watch before another begins", status.ErrLimit)
	}
	return ses.follow(request, &objectsSource{events: e})
}

// objectGone notes an object that was destroyed while the session had references to it, and why if that is known. It
// returns at once.
func (ses *session) objectGone(id, why string) {
	e := &ses.events
	e.mu.Lock()
	objects := e.objects
	e.mu.Unlock()
	if objects != nil {
		objects.note(message.ObjectGone{ID: id, Reason: why})
	}
}
