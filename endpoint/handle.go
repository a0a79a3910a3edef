package endpoint

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
)

// HandleState tells how a handle's version stands at its owner. Whatever it is, the memory stays valid until the handle is closed.
type HandleState uint8

const (
	// Current is the newest version of its name.
	Current HandleState = iota
	// Superseded is a version beside which there is a newer one.
	Superseded
	// Withdrawn is a version whose name was taken out of the catalog.
	Withdrawn
	// Orphaned is a version that no owner knows any more: the owner ended, or another took its place.
	Orphaned
)

// String is the state in one word.
func (s HandleState) String() string {
	switch s {
	case Current:
		return "current"
	case Superseded:
		return "superseded"
	case Withdrawn:
		return "withdrawn"
	case Orphaned:
		return "orphaned"
	}
	return fmt.Sprintf("HandleState(%d)", uint8(s))
}

// Handle is an attached version: a state dict over memory that this process has mapped, and a lease in the owner's books that says so.
// The memory is this process's own mapping: it stays valid until Close whatever becomes of the owner or the lease. The
// lease belongs to the connection; after a reconnection to the same owner the client takes it again by itself.
type Handle struct {
	client  *Client
	sd      *module.StateDict
	name    string
	version uint64
	server  string // the id of the owner that it came from

	mu      sync.Mutex
	link    *link  // on which the lease is held; nil while there is none
	lease   uint64 // the lease on that link
	request uint64 // the request on that link which its events belong to
	state   HandleState
	newest  uint64
	changed chan struct{}
	ready   bool // sd, version and server are filled in
	early   []wire.Event
	closed  bool
}

// StateDict holds the tensors. It is borrowed: valid until Close, and not to be closed by the caller. Clone it to keep it
// longer. The memory is mapped read-only: writing to it kills the process.
func (h *Handle) StateDict() *module.StateDict { return h.sd }

// Name is the name under which it was acquired.
func (h *Handle) Name() string { return h.name }

// Version is the version that is attached; it never changes.
func (h *Handle) Version() uint64 { return h.version }

// ServerID names the owner that the version came from.
func (h *Handle) ServerID() string { return h.server }

// State tells how the version stands at its owner, as far as this process has heard, without asking.
func (h *Handle) State() HandleState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Newest is the newest version of the name that this process has heard of.
func (h *Handle) Newest() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// Changed returns a channel that is closed when State or Newest next changes, or the handle is closed. Ask for the channel first and for
// the state afterwards: then no change goes unseen.
func (h *Handle) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Leased tells whether the owner's books know at this moment that this process holds the version. It is false while
// the connection is away.
func (h *Handle) Leased() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.link != nil
}

// Close unmaps the memory and gives the lease back. Slices and tensors of the state dict must not be used after it. It does not
// wait for the owner. A second Close is nil.
func (h *Handle) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	link, lease, request := h.link, h.lease, h.request
	h.link = nil
	close(h.changed)
	h.mu.Unlock()
	h.client.forget(h)
	if link != nil {
		link.release(lease, request)
	}
	return h.sd.Close()
}

// changeLocked sets the state and tells who waits for a change.
func (h *Handle) changeLocked(state HandleState, newest uint64) {
	if h.closed || (h.state == state && h.newest == newest) {
		return
	}
	h.state, h.newest = state, newest
	close(h.changed)
	h.changed = make(chan struct{})
}

// attached fills in what was acquired, and catches up with events that came before.
func (h *Handle) attached(sd *module.StateDict, server string, version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sd, h.server, h.version = sd, server, version
	h.newest, h.ready = version, true
	for _, e := range h.early {
		h.heardLocked(e)
	}
	h.early = nil
}

// event is called by whoever reads the connection with news of the handle's name.
func (h *Handle) event(e wire.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ready {
		h.heardLocked(e)
		return
	}
	h.early = append(h.early, e)
}

// heardLocked notes an event of the owner about the handle's name.
func (h *Handle) heardLocked(e wire.Event) {
	switch {
	case h.state == Orphaned:
	case e.Kind == wire.EventWithdrawn && e.Version >= h.version:
		h.changeLocked(Withdrawn, h.newest)
	case e.Kind == wire.EventPublished && e.Version > h.newest:
		// Versions never repeat, so one that is published after a withdrawal does not bring the withdrawn one back.
		state := Superseded
		if h.state == Withdrawn {
			state = Withdrawn
		}
		h.changeLocked(state, e.Version)
	}
}

// orphan notes that no owner knows the version any more.
func (h *Handle) orphan() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.link = nil
	h.changeLocked(Orphaned, h.newest)
}

// detach notes that the link is gone and the lease with it.
func (h *Handle) detach(l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == l {
		h.link = nil
	}
}

// leased notes a lease that was taken. It is false when the handle was closed meanwhile, or has a lease on that link: the
// caller gives this one back.
func (h *Handle) leased(l *link, lease, request uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.link == l {
		return false
	}
	h.link, h.lease, h.request = l, lease, request
	return true
}

// leasedOn tells whether the lease is held on that link.
func (h *Handle) leasedOn(l *link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.link == l
}
