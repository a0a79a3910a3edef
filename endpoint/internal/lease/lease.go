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

// State is the state of a version at its owner.
type State uint8

const (
	// Current is the newest version of its name.
	Current State = iota
	// Superseded is a version that has a successor.
	Superseded
	// Withdrawn is a version whose name was withdrawn.
	Withdrawn
	// Orphaned is a version that is no longer known to an owner.
	Orphaned
)

// Lease is the client's state of one lease. It does not keep the memory of the version reachable.
type Lease struct {
	// Name and Version identify what was acquired, Server is the id of its owner, Source the source of its publication,
	// and Bytes the size of its memory. They are immutable.
	Name    string
	Version uint64
	Server  string
	Source  string
	Bytes   int64

	of *Leases

	mu        sync.Mutex
	link      *link.Link // connection that has the lease; nil while the owner does not have it
	lease     uint64     // id of the lease on link
	request   uint64     // id of the request on link; events carry it
	state     State
	newest    uint64
	changed   chan struct{}
	ready     bool             // version and server are set
	eventLink *link.Link       // events of other connections are ignored
	early     [2]message.Event // events before ready: the last withdrawal and the last publication before it; zero if there was none
	lost      bool             // the lease ended with its connection and was not renewed
	refused   *link.Link       // connection on which the owner last refused to renew the lease
	closed    bool
}

// State returns the state of the version, and the newest known version.
func (a *Lease) State() (state State, newest uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state, a.newest
}

// Changed returns a channel that is closed at the next change.
func (a *Lease) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// Held reports whether the owner currently has the lease.
func (a *Lease) Held() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link != nil
}

// Release ends the lease without waiting for the owner's answer. It returns false if the lease was already released.
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

// Collected is called when the handle and its tensors became unreachable without Close. It releases the lease, unless
// memory of the version may be in use. In that case it reports a leak.
func (a *Lease) Collected(leak *driver.Leak) {
	a.of.conn.Start(func() {
		log := a.of.log.With("name", a.Name, "version", a.Version, "server", a.Server)
		switch {
		case leak != nil:
			driver.ReportLeak(*leak)
			log.Warn("handle not closed; its lease is kept because a slice or address of its memory may be in use")
		case a.Release():
			log.Warn("handle not closed")
		}
	})
}

// changeLocked sets the state and notifies waiters.
func (a *Lease) changeLocked(state State, newest uint64) {
	if a.closed || (a.state == state && a.newest == newest) {
		return
	}
	a.state, a.newest = state, newest
	a.notifyLocked()
}

// notifyLocked wakes the waiters for a change.
func (a *Lease) notifyLocked() {
	if !a.closed {
		close(a.changed)
		a.changed = make(chan struct{})
	}
}

// acquired sets the acquired version and applies earlier events.
func (a *Lease) acquired(server string, version uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Server, a.Version = server, version
	a.newest, a.ready = version, true
	for _, e := range a.early {
		a.applyLocked(e)
	}
}

// eventsOf makes the lease accept only events of l, and returns their handler. Events of another owner, or of a
// connection that ended, are not about this version.
func (a *Lease) eventsOf(l *link.Link) func(message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.Reason() == nil { // otherwise the lease may already be on another connection
		a.eventLink, a.early = l, [2]message.Event{}
	}
	return func(e message.Event) { a.event(l, e) }
}

// event handles an event of the handle's name. It runs in the goroutine that reads the connection.
func (a *Lease) event(l *link.Link, e message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.eventLink != l:
	case a.ready:
		a.applyLocked(e)
	case e.Kind == message.EventWithdrawn:
		a.early[0] = e
	case e.Kind == message.EventPublished:
		a.early[1] = e
	}
}

// applyLocked applies an event of the handle's name.
func (a *Lease) applyLocked(e message.Event) {
	switch {
	case a.state == Orphaned:
	case e.Kind == message.EventWithdrawn && e.Version >= a.Version:
		a.changeLocked(Withdrawn, a.newest)
	case e.Kind == message.EventPublished && e.Version > a.newest:
		// Version numbers are never reused, so a publication after a withdrawal does not make the withdrawn version
		// current.
		state := Superseded
		if a.state == Withdrawn {
			state = Withdrawn
		}
		a.changeLocked(state, e.Version)
	}
}

// End implements [connector.Dependent]. The version becomes orphaned.
func (a *Lease) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.link = nil
	a.changeLocked(Orphaned, a.newest)
}

// Lost implements [connector.Dependent]. The lease ends with its connection.
func (a *Lease) Lost(l *link.Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link == l {
		a.link, a.lost = nil, true
		a.notifyLocked()
	}
}

// leased records an acquired lease. It returns false if the handle was closed meanwhile or already has a lease on l;
// the caller must then release this lease.
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

// NeedsResume implements [connector.Dependent]. It returns false if the lease is held on l, was refused on l, or the
// version no longer exists.
func (a *Lease) NeedsResume(l *link.Link) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link != l && a.refused != l && a.state != Orphaned
}

// refusedOn records that the owner refused to renew the lease, so that it is not requested twice on one connection.
func (a *Lease) refusedOn(l *link.Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = l
}

// Resume implements [connector.Dependent]. It renews the lease, or marks the version as orphaned if the owner no longer
// has it. If the owner refuses, the handle has no lease until the next connection.
func (a *Lease) Resume(ctx context.Context, l *link.Link) error {
	if !a.NeedsResume(l) {
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
		a.refusedOn(l)
		a.of.log.Warn("lease not renewed", "name", a.Name, "version", a.Version, "error", err)
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
