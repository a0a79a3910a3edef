package endpoint

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// holdings are what a client has at its owner beyond a request: handles with leases, watchers, and references to
// managed objects. They outlive a connection: on the next one they are taken up again.
type holdings struct {
	conn *connector
	log  *slog.Logger

	mu       sync.Mutex
	handles  map[*leaseState]struct{}
	watchers map[*Watcher]struct{}
	offers   map[*Offer]struct{}
	refs     references
	ended    bool // the client was closed
}

// needed implements dependents.
func (h *holdings) needed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.handles)+len(h.watchers)+len(h.offers)+h.refs.count > 0
}

// register makes a handle known, so that it hears of events and has its lease taken again after a reconnection. Where
// the connection ended while the handle was made, that begins now.
func (h *holdings) register(a *leaseState, l *link.Link, lease, request uint64) {
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		a.orphan()
		return
	}
	h.handles[a] = struct{}{}
	a.leased(l, lease, request)
	h.mu.Unlock()
	if h.conn.current() != l { // lost may have been called before the handle was there
		a.detach(l)
		h.conn.onNext(func(ctx context.Context, next *link.Link) error { return h.resumeHandle(ctx, next, a) })
	}
}

// forget drops a closed handle.
func (h *holdings) forget(a *leaseState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.handles, a)
}

// addWatcher makes a watcher known, so that it is taken up after a reconnection. It is false where the client was
// closed.
func (h *holdings) addWatcher(w *Watcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.watchers[w] = struct{}{}
	return true
}

// forgetWatcher drops a watcher that has ended.
func (h *holdings) forgetWatcher(w *Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// addOffer makes an offer known, so that it is made again after a reconnection. It is false where the client was
// closed.
func (h *holdings) addOffer(o *Offer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.offers[o] = struct{}{}
	return true
}

// forgetOffer drops an offer that has ended.
func (h *holdings) forgetOffer(o *Offer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.offers, o)
}

// lost implements dependents: handles and watchers hear that the connection is gone, and references are without one.
// Where its owner has said that it is leaving, their objects are gone too.
func (h *holdings) lost(l *link.Link) {
	h.mu.Lock()
	for a := range h.handles {
		a.detach(l)
	}
	for w := range h.watchers {
		w.lost(l)
	}
	for o := range h.offers {
		o.lost(l)
	}
	h.mu.Unlock()
	left := l.Left()
	for _, r := range h.references() {
		if left && r.heldOn() == l {
			h.lose(r, status.StaleObjectMissing)
		}
		r.detach(l)
	}
}

// end ends everything, as the client was closed. Memory stays mapped.
func (h *holdings) end() {
	h.mu.Lock()
	handles, watchers, offers, refs := h.handles, h.watchers, h.offers, h.refs.all()
	h.handles, h.watchers, h.offers, h.refs, h.ended = nil, nil, nil, references{}, true
	h.mu.Unlock()
	for o := range offers {
		o.end(status.ErrClosed)
	}
	for w := range watchers {
		w.end(status.ErrClosed)
	}
	for a := range handles {
		a.orphan()
	}
	for _, r := range refs {
		r.end(errReleased)
	}
}

// describe fills in how many there are, and the versions that handles have.
func (h *holdings) describe(out *ClientStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out.Handles, out.Watchers, out.References = len(h.handles), len(h.watchers), h.refs.count
	out.Versions = []VersionInUse{}
	for a := range h.handles {
		v := a.inUse()
		out.BytesMapped += v.Bytes
		i, found := slices.BinarySearchFunc(out.Versions, v, compareInUse)
		if !found {
			out.Versions = slices.Insert(out.Versions, i, v)
			continue
		}
		same := &out.Versions[i]
		same.Handles++
		same.Bytes += v.Bytes
		same.Newest, same.State = max(same.Newest, v.Newest), max(same.State, v.State)
	}
}
