package reference

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Reference is one reference to a managed object.
type Reference struct {
	// ID names the object within the life of Server, the id of the server that it came from.
	ID, Server string

	of   *Table
	done chan struct{} // closed when err is set

	mu    sync.Mutex
	link  *link.Link // that holds the reference; nil while the owner does not have it
	token uint64     // tells it apart from the others of the session
	err   error      // why it is of no use any more
}

func newReference(t *Table, obj *message.ObjectRef) *Reference {
	return &Reference{of: t, ID: obj.ID, Server: obj.Server, token: obj.Token, done: make(chan struct{})}
}

// ErrReleased is the end of a reference that was given back.
var ErrReleased = fmt.Errorf("reference to an object: %w", status.ErrClosed)

// end notes why the reference is of no use any more. It is false for one that was of no use before.
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

// Release gives the reference back, waiting for the answer or not. It is false where the server took none back: the
// second time, and where the object is gone.
func (r *Reference) Release(ctx context.Context, wait bool) (bool, error) {
	if !r.end(ErrReleased) {
		return false, nil
	}
	return r.of.giveBack(ctx, r, wait)
}

// Forgotten is called when nothing of the value is used any more and nobody has closed it. The reference goes back, if
// it has not, unless memory of the value may be in use: then that is a leak; what and name tell where it came from.
func (r *Reference) Forgotten(leak *driver.Leak, what, name string) {
	r.of.conn.Start(func() {
		log := r.of.log.With("object", r.ID, what, name, "server", r.Server)
		switch {
		case leak != nil && r.Err() == nil:
			driver.ReportLeak(*leak)
			log.Warn("a reference to a managed object was not closed; it is kept, because a slice or address of its memory may be in use")
		case leak == nil && r.end(ErrReleased):
			_, _ = r.of.giveBack(context.Background(), r, false)
			log.Warn("a reference to a managed object was not closed")
		}
	})
}

// stale ends the reference because its object is gone; detail is what the server said of that.
func (r *Reference) stale(reason status.StaleReason, detail string) bool {
	return r.end(&status.StaleError{ObjectID: r.ID, ServerID: r.Server, Reason: reason, Detail: detail})
}

// Done is closed when Err is not nil any more.
func (r *Reference) Done() <-chan struct{} { return r.done }

// Err is why the reference is of no use any more; nil while it is.
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

// isOneOf reports whether the reference has one of the tokens.
func (r *Reference) isOneOf(tokens map[uint64]string) bool {
	_, token := r.held()
	return token != 0 && tokens[token] == r.ID
}

// spentIn reports whether the reference was given back by id before it was known here.
func (r *Reference) spentIn(events *link.ObjectEvents) bool {
	_, token := r.held()
	return events.WasSpent(r.ID, token)
}

// tokensOf are the references that were given back, by token, with their objects.
func tokensOf(rows []message.ObjectReleased) map[uint64]string {
	tokens := make(map[uint64]string, len(rows))
	for _, row := range rows {
		if row.Released && row.Token != 0 {
			tokens[row.Token] = row.ID
		}
	}
	return tokens
}

// detach notes that a link is gone, and the reference with it.
func (r *Reference) detach(l *link.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == l {
		r.link = nil
	}
}

// attach notes a reference that was taken on a link, and its token. It is false when the reference is of no use any
// more, or is held on that link: the caller gives this one back.
func (r *Reference) attach(l *link.Link, token uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.link == l {
		return false
	}
	r.link, r.token = l, token
	return true
}

// resume takes the reference again, or finds that its object is gone, or not to be had.
func (r *Reference) resume(ctx context.Context, l *link.Link) error {
	defer l.ObjectEvents.Expect()()
	switch {
	case r.heldOn() == l:
		return nil
	case r.Server != l.Server.Server:
		r.of.lose(r, status.StaleServerMismatch)
		return nil
	}
	if r.Err() != nil { // it was given back meanwhile
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
	case l.ObjectEvents.HeardOf(r.ID): // before it was known to be held here
		r.of.lose(r, status.StaleObjectMissing)
	}
	return nil
}
