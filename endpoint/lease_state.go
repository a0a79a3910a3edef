package endpoint

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// leaseState is what a client knows of the lease of a [Handle]. It keeps neither the handle nor its memory reachable.
type leaseState struct {
	held    *holdings
	name    string
	version uint64
	server  string // the id of the owner that it came from
	bytes   int64  // of its storages

	mu      sync.Mutex
	link    *link.Link // on which the lease is held; nil while there is none
	lease   uint64     // the lease on that link
	request uint64     // the request on that link which its events belong to
	state   HandleState
	newest  uint64
	changed chan struct{}
	ready   bool             // version and server are filled in
	asked   *link.Link       // whose events count
	early   [2]message.Event // the last withdrawal and the last publication before that; without a kind where there was none
	lost    bool             // the lease was lost with its connection, and not taken again
	closed  bool
}

// current is the state.
func (h *leaseState) current() HandleState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// newestVersion is the newest version of the name that the owner has announced.
func (h *leaseState) newestVersion() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// changes is closed at the next change.
func (h *leaseState) changes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// release ends the lease without waiting for the owner's answer. It is false the second time.
func (h *leaseState) release() bool {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return false
	}
	h.closed = true
	link, lease, request := h.link, h.lease, h.request
	h.link = nil
	close(h.changed)
	h.mu.Unlock()
	h.held.forget(h)
	if link != nil {
		link.Release(lease, request)
	}
	return true
}

// collected is called when the handle and its tensors are unreachable and it was not closed. The lease is released,
// unless memory of the version may be in use: then that is a leak.
func (h *leaseState) collected(leak *driver.Leak) {
	h.held.conn.start(func() {
		log := h.held.log.With("name", h.name, "version", h.version, "server", h.server)
		switch {
		case leak != nil:
			driver.ReportLeak(*leak)
			log.Warn("a handle was not closed; its lease is kept, because a slice or address of its memory may be in use")
		case h.release():
			log.Warn("a handle was not closed")
		}
	})
}

// changeLocked sets the state and notifies.
func (h *leaseState) changeLocked(state HandleState, newest uint64) {
	if h.closed || (h.state == state && h.newest == newest) {
		return
	}
	h.state, h.newest = state, newest
	h.notifyLocked()
}

// notifyLocked closes the channel that waiters for a change have.
func (h *leaseState) notifyLocked() {
	if !h.closed {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// acquired fills in what was acquired, and applies the events that came before.
func (h *leaseState) acquired(server string, version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.server, h.version = server, version
	h.newest, h.ready = version, true
	for _, e := range h.early {
		h.applyLocked(e)
	}
}

// eventsOf makes the events of a connection those that count, and returns what takes them: what another owner, or the
// same one on a connection that broke, says of the name is not about this version.
func (h *leaseState) eventsOf(l *link.Link) func(message.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.Reason() == nil { // else there may be another one already
		h.asked, h.early = l, [2]message.Event{}
	}
	return func(e message.Event) { h.event(l, e) }
}

// event is called by the goroutine that reads the connection, with an event of the handle's name.
func (h *leaseState) event(l *link.Link, e message.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.asked != l:
	case h.ready:
		h.applyLocked(e)
	case e.Kind == message.EventWithdrawn:
		h.early[0] = e
	case e.Kind == message.EventPublished:
		h.early[1] = e
	}
}

// applyLocked applies an event of the owner about the handle's name.
func (h *leaseState) applyLocked(e message.Event) {
	switch {
	case h.state == Orphaned:
	case e.Kind == message.EventWithdrawn && e.Version >= h.version:
		h.changeLocked(Withdrawn, h.newest)
	case e.Kind == message.EventPublished && e.Version > h.newest:
		// Versions never repeat, so one that is published after a withdrawal does not bring the withdrawn one back.
		state := Superseded
		if h.state == Withdrawn {
			state = Withdrawn
		}
		h.changeLocked(state, e.Version)
	}
}

// orphan notes that no owner knows the version any more.
func (h *leaseState) orphan() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.link = nil
	h.changeLocked(Orphaned, h.newest)
}

// detach notes that the link is gone and the lease with it.
func (h *leaseState) detach(l *link.Link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == l {
		h.link, h.lost = nil, true
		h.notifyLocked()
	}
}

// leased notes a lease that was taken. It is false when the handle was closed meanwhile, or has a lease on that link:
// the caller releases this one.
func (h *leaseState) leased(l *link.Link, lease, request uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.link == l {
		return false
	}
	if h.lost {
		h.notifyLocked()
	}
	h.link, h.lease, h.request, h.lost = l, lease, request, false
	return true
}

// leasedOn reports whether the lease is held on that link; nil for none.
func (h *leaseState) leasedOn(l *link.Link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.link == l
}

// settledOn reports whether there is nothing to resume on a link: the lease is held there, or no owner knows the
// version any more.
func (h *leaseState) settledOn(l *link.Link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.link == l || h.state == Orphaned
}
