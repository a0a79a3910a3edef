package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// objectsSource holds objects that were destroyed while the client had references to them. The number of those
// references bounds it. A client has one such source at a time.
type objectsSource struct {
	client *client

	mu   sync.Mutex
	gone []message.ObjectGone
	wake func()
}

// Weight implements Source. It is 0 because every client with references has such a source.
func (*objectsSource) Weight() int { return 0 }

// Open implements Source.
func (o *objectsSource) Open(wake func()) {
	o.wake = wake
	o.client.objects.Store(o)
}

// Opening implements Source.
func (*objectsSource) Opening() bool { return false }

// Close implements Source.
func (o *objectsSource) Close() { o.client.objects.Store(nil) }

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

// watch subscribes the client to objects that the server destroys. A client has one such subscription.
func (o *objectOperations) watch(_ context.Context, r *session.Request) (session.Reply, error) {
	c := clientOf(r.Session)
	if c.objects.Load() != nil {
		return nil, fmt.Errorf("%w: this client already watches objects; end that watch first", status.ErrLimit)
	}
	return subscribe(r, &objectsSource{client: c}, message.WatchingObjects{})
}

// objectGone reports an object that was destroyed while the client had references to it. why may be empty. It returns
// at once.
func (c *client) objectGone(id, why string) {
	if objects := c.objects.Load(); objects != nil {
		objects.note(message.ObjectGone{ID: id, Reason: why})
	}
}
