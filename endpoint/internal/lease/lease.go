package lease

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

// State is how a version stands at its owner.
type State uint8

const (
	// Current is the newest version of its name.
	Current State = iota
	// Superseded is a version beside which there is a newer one.
	Superseded
	// Withdrawn is a version whose name was taken out of the catalog.
	Withdrawn
	// Orphaned is a version that no owner knows any more.
	Orphaned
)

// Lease is what a client knows of one lease. It does not keep the memory of the version reachable.
type Lease struct {
	// Name and Version are what was acquired, Server is the id of the owner that it came from, and Bytes the size of
	// the memory. They never change.
	Name    string
	Version uint64
	Server  string
	Bytes   int64

	of *Leases

	mu      sync.Mutex
	link    *link.Link // that holds the lease; nil while the owner does not have it
	lease   uint64     // the lease on that link
	request uint64     // the request on that link which its events belong to
	state   State
	newest  uint64
	changed chan struct{}
	ready   bool             // version and server are filled in
	asked   *link.Link       // events of other connections are ignored
	early   [2]message.Event // the last withdrawal and the last publication before that; without a kind where there was none
	lost    bool             // the lease was lost with its connection, and not taken again
	closed  bool
}

// State is how the version stands at its owner.
func (a *Lease) State() (state State, newest uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state, a.newest
}

// Changed is closed at the next change.
func (a *Lease) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// Held reports whether the owner has the lease at this moment.
func (a *Lease) Held() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link != nil
}

// Release ends the lease without waiting for the owner's answer. It is false the second time.
func (a *Lease) Release() bool {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return false
	}
	a.closed = true
	link, lease, request := a.link, a.lease, a.request
	a.link = nil
	close(a.changed)
	a.mu.Unlock()
	a.of.Remove(a)
	if link != nil {
		link.Release(lease, request)
	}
	return true
}

// Collected is called when the handle and its tensors are unreachable and it was not closed. The lease is released,
// unless memory of the version may be in use: then that is a leak.
func (a *Lease) Collected(leak *driver.Leak) {
	a.of.conn.Start(func() {
		log := a.of.log.With("name", a.Name, "version", a.Version, "server", a.Server)
		switch {
		case leak != nil:
			driver.ReportLeak(*leak)
			log.Warn("a handle was not closed; its lease is kept, because a slice or address of its memory may be in use")
		case a.Release():
			log.Warn("a handle was not closed")
		}
	})
}

// changeLocked sets the state and notifies.
func (a *Lease) changeLocked(state State, newest uint64) {
	if a.closed || (a.state == state && a.newest == newest) {
		return
	}
	a.state, a.newest = state, newest
	a.notifyLocked()
}

// notifyLocked closes the channel that waiters for a change have.
func (a *Lease) notifyLocked() {
	if !a.closed {
		close(a.changed)
		a.changed = make(chan struct{})
	}
}

// acquired fills in what was acquired, and applies the events that came before.
func (a *Lease) acquired(server string, version uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Server, a.Version = server, version
	a.newest, a.ready = version, true
	for _, e := range a.early {
		a.applyLocked(e)
	}
}

// eventsOf makes the events of a connection those that count, and returns what takes them: what another owner, or the
// same one on a connection that broke, says of the name is not about this version.
func (a *Lease) eventsOf(l *link.Link) func(message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.Reason() == nil { // else there may be another one already
		a.asked, a.early = l, [2]message.Event{}
	}
	return func(e message.Event) { a.event(l, e) }
}

// event is called by the goroutine that reads the connection, with an event of the handle's name.
func (a *Lease) event(l *link.Link, e message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.asked != l:
	case a.ready:
		a.applyLocked(e)
	case e.Kind == message.EventWithdrawn:
		a.early[0] = e
	case e.Kind == message.EventPublished:
		a.early[1] = e
	}
}

// applyLocked applies an event of the owner about the handle's name.
func (a *Lease) applyLocked(e message.Event) {
	switch {
	case a.state == Orphaned:
	case e.Kind == message.EventWithdrawn && e.Version >= a.Version:
		a.changeLocked(Withdrawn, a.newest)
	case e.Kind == message.EventPublished && e.Version > a.newest:
		// Versions never repeat, so one that is published after a withdrawal does not bring the withdrawn one back.
		state := Superseded
		if a.state == Withdrawn {
			state = Withdrawn
		}
		a.changeLocked(state, e.Version)
	}
}

// End implements [connector.Dependent]: no owner knows the version any more.
func (a *Lease) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.link = nil
	a.changeLocked(Orphaned, a.newest)
}

// Lost implements [connector.Dependent]: the lease is gone with its connection.
func (a *Lease) Lost(l *link.Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link == l {
		a.link, a.lost = nil, true
		a.notifyLocked()
	}
}

// leased notes a lease that was taken. It is false when the handle was closed meanwhile, or has a lease on that link:
// the caller releases this one.
func (a *Lease) leased(l *link.Link, lease, request uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.link == l {
		return false
	}
	if a.lost {
		a.notifyLocked()
	}
	a.link, a.lease, a.request, a.lost = l, lease, request, false
	return true
}

// On implements [connector.Dependent]: the lease is held there, or no owner knows the version any more.
func (a *Lease) On(l *link.Link) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link == l || a.state == Orphaned
}

// Resume implements [connector.Dependent]: it takes the lease again, or finds that the owner does not know the version
// any more. If the owner refuses it, the handle goes on without a lease.
func (a *Lease) Resume(ctx context.Context, l *link.Link) error {
	if a.On(l) {
		return nil
	}
	if l.Server.Server != a.Server {
		a.End()
		return nil
	}
	ask := message.Acquire{Name: a.Name, Version: a.Version}
	id, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpAcquire, Body: ask, Event: a.eventsOf(l), Late: l.ReleaseLate})
	switch {
	case errors.Is(err, status.ErrNotFound):
		a.End()
		return nil
	case connector.Refused(err):
		a.of.log.Warn("a lease was not taken again", "name", a.Name, "version", a.Version, "error", err)
		return nil
	case err != nil:
		return err
	}
	defer frame.Files.Close()
	var got message.Acquired
	if err := link.DecodeAnswer(frame, &got); err != nil {
		return err
	}
	if !a.leased(l, got.Lease, id) {
		l.Release(got.Lease, id)
	}
	return nil
}
