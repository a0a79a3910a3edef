package endpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// reference is one reference to a managed object: what a [Ref] is without its type.
type reference struct {
	of         *holdings
	id, server string
	done       chan struct{} // closed when err is set

	mu    sync.Mutex
	link  *link.Link // of a client: on which the session has the reference; nil while there is none
	token uint64     // tells it apart from the others of the session
	err   error      // why it is of no use any more
}

func newReference(h *holdings, obj *message.ObjectRef) *reference {
	return &reference{of: h, id: obj.ID, server: obj.Server, token: obj.Token, done: make(chan struct{})}
}

var errReleased = fmt.Errorf("reference to an object: %w", status.ErrClosed)

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

// forgotten is called when nothing of a [Ref] is used any more and nobody has closed it. The reference goes back, if it
// has not, unless memory of the value may be in use: then that is a leak; what and name tell where it came from.
func (r *reference) forgotten(leak *driver.Leak, what, name string) {
	r.of.conn.start(func() {
		log := r.of.log.With("object", r.id, what, name, "server", r.server)
		switch {
		case leak != nil && r.reason() == nil:
			driver.ReportLeak(*leak)
			log.Warn("a reference to a managed object was not closed; it is kept, because a slice or address of its memory may be in use")
		case leak == nil && r.end(errReleased):
			_, _ = r.of.returnReference(context.Background(), r, false)
			log.Warn("a reference to a managed object was not closed")
		}
	})
}

// stale ends the reference because its object is gone; detail is what the server said of that.
func (r *reference) stale(reason status.StaleReason, detail string) bool {
	return r.end(&status.StaleError{ObjectID: r.id, ServerID: r.server, Reason: reason, Detail: detail})
}

// reason is why the reference is of no use any more; nil while it is.
func (r *reference) reason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// heldOn is the link on which the session has the reference.
func (r *reference) heldOn() *link.Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link
}

// held tells on which link the session has the reference, and by which token.
func (r *reference) held() (*link.Link, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link, r.token
}

// isOneOf reports whether the reference has one of the tokens.
func (r *reference) isOneOf(tokens map[uint64]string) bool {
	_, token := r.held()
	return token != 0 && tokens[token] == r.id
}

// spentIn reports whether the reference was given back by id before it was known here.
func (r *reference) spentIn(news *link.ObjectEvents) bool {
	_, token := r.held()
	return news.WasSpent(r.id, token)
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
func (r *reference) detach(l *link.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == l {
		r.link = nil
	}
}

// attach notes a reference that was taken on a link, and its token. It is false when the reference is of no use any
// more, or is held on that link: the caller gives this one back.
func (r *reference) attach(l *link.Link, token uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.link == l {
		return false
	}
	r.link, r.token = l, token
	return true
}
