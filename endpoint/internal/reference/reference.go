package reference

import (
	"context"
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Reference is one reference to a managed object.
type Reference struct {
	// ID identifies the object at the server with the id Server, for the server's lifetime.
	ID, Server string

	of   *Table
	done chan struct{} // closed when err is set

	mu    sync.Mutex
	link  *link.Link // connection that has the reference; nil while the owner does not have it
	token uint64     // identifies the reference within the session
	err   error      // why the reference has ended
}

func newReference(t *Table, obj *message.ObjectRef) *Reference {
	return &Reference{of: t, ID: obj.ID, Server: obj.Server, token: obj.Token, done: make(chan struct{})}
}

// ErrReleased is the error of a released reference.
var ErrReleased = status.Closed("the reference to an object")

// end ends the reference with err. It returns false if it has already ended.
func (r *Reference) end(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.err = err
	close(r.done)
	return true
}

// Release releases the reference. If wait is set, it waits for the answer. It returns false if the server released
// nothing: at the second call, or if the object no longer exists.
func (r *Reference) Release(ctx context.Context, wait bool) (bool, error) {
	if !r.end(ErrReleased) {
		return false, nil
	}
	return r.of.giveBack(ctx, r, wait)
}

// Collected is called when the value became unreachable without Close. It releases the reference, unless memory of the
// value may be in use. In that case it reports a leak; what and name describe its origin.
func (r *Reference) Collected(leak *driver.Leak, what, name string) {
	r.of.conn.Start(func() {
		log := r.of.log.With("object", r.ID, what, name, "server", r.Server)
		switch {
		case leak != nil && r.Err() == nil:
			driver.ReportLeak(*leak)
			log.Warn("reference to a managed object not closed; it is kept because a slice or address of its memory may be in use")
		case leak == nil && r.end(ErrReleased):
			_, _ = r.of.giveBack(context.Background(), r, false)
			log.Warn("reference to a managed object not closed")
		}
	})
}

// stale ends the reference because its object no longer exists. detail is the server's explanation.
func (r *Reference) stale(reason status.StaleReason, detail string) bool {
	return r.end(&status.StaleError{ObjectID: r.ID, ServerID: r.Server, Reason: reason, Detail: detail})
}

// Done returns a channel that is closed when the reference ends.
func (r *Reference) Done() <-chan struct{} { return r.done }

// Err returns why the reference has ended, or nil while it is live.
func (r *Reference) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// heldOn returns the link that holds the reference, or nil.
func (r *Reference) heldOn() *link.Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link
}

// held returns the link that holds the reference, and its token there.
func (r *Reference) held() (*link.Link, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link, r.token
}

// detach records that link l has ended, and the reference with it.
func (r *Reference) detach(l *link.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == l {
		r.link = nil
	}
}

// attach records a reference that was acquired on l, and its token. It returns false if the reference has ended or is
// already held on l; the caller must then release the new one.
func (r *Reference) attach(l *link.Link, token uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.link == l {
		return false
	}
	r.link, r.token = l, token
	return true
}

// resume acquires the reference again. It ends the reference if the object no longer exists or the owner refuses.
func (r *Reference) resume(ctx context.Context, l *link.Link) error {
	defer l.ObjectEvents.Track()()
	switch {
	case r.heldOn() == l:
		return nil
	case r.Server != l.Server.Server:
		r.of.lose(r, status.StaleServerMismatch)
		return nil
	}
	if r.Err() != nil { // released meanwhile
		return nil
	}
	if err := r.of.Watch(ctx, l); err != nil {
		return err
	}
	_, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpObjectRefer, Body: message.Object{ID: r.ID}})
	switch {
	case errors.Is(err, status.ErrStale), connector.Refused(err):
		r.of.lose(r, status.StaleObjectMissing)
		return nil
	case err != nil:
		return err
	}
	var again message.ObjectInfo
	err = link.DecodeAnswer(frame, &again)
	frame.Files.Close()
	if err != nil {
		return err
	}
	switch {
	case !r.attach(l, again.Token):
		l.ReleaseObject(r.ID, again.Token)
	case l.ObjectEvents.WasDestroyed(r.ID): // before this reference was registered on l
		r.of.lose(r, status.StaleObjectMissing)
	}
	return nil
}
