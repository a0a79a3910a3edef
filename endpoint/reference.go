package endpoint

import (
	"context"
	"fmt"
	"sync"
)

// reference is one reference to a managed object: what a [Ref] is without its type.
type reference struct {
	keeper     keeper
	id, server string
	done       chan struct{} // closed when err is set

	mu   sync.Mutex
	link *link // of a client: on which the session has the reference; nil while there is none
	err  error // why it is of no use any more
}

// keeper is who has the references of this process at a server: a client, or the server itself.
type keeper interface {
	// returnReference gives a live reference back, waiting for the answer or not.
	returnReference(ctx context.Context, r *reference, wait bool) (bool, error)
}

func newReference(k keeper, id, server string) *reference {
	return &reference{keeper: k, id: id, server: server, done: make(chan struct{})}
}

var errReleased = fmt.Errorf("reference to an object: %w", ErrClosed)

// end notes why the reference is of no use any more. It is false for one that was of no use before.
func (r *reference) end(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.err = err
	close(r.done)
	return true
}

// stale ends the reference because its object is gone.
func (r *reference) stale(reason StaleReason) bool {
	return r.end(&StaleError{ObjectID: r.id, ServerID: r.server, Reason: reason})
}

// reason is why the reference is of no use any more; nil while it is.
func (r *reference) reason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// heldOn tells on which link the session has the reference.
func (r *reference) heldOn() *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link
}

// moveTo notes the link on which the session has the reference now; nil for none.
func (r *reference) moveTo(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link = l
}

// attach notes a reference that was taken on a link. It is false when the reference is of no use any more, or is held on that link: the
// caller gives this one back.
func (r *reference) attach(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.link == l {
		return false
	}
	r.link = l
	return true
}
