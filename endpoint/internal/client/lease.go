package client

import (
	"context"
	"errors"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// LeaseState is what is known about a version at its owner. The zero value is the newest version of its name.
type LeaseState struct {
	// Newest is the newest version of the name.
	Newest uint64
	// Withdrawn means that the name was withdrawn. Orphaned means that no owner has the version any more.
	Withdrawn, Orphaned bool
}

// Lease is the client's state of one lease. It does not keep the memory of the version reachable.
type Lease struct {
	// Name and Version identify what was acquired, Server is the id of its owner, Source the source of its publication,
	// and Bytes the size of its memory. They are immutable.
	Name    string
	Version uint64
	Server  string
	Source  string
	Bytes   int64

	of      *Connector
	catalog string // id of the owner's versions; a later owner may adopt them

	mu        sync.Mutex
	conn      *Conn  // connection that has the lease; nil while the owner does not have it
	lease     uint64 // id of the lease on conn
	request   uint64 // id of the request on conn; events carry it
	state     LeaseState
	changed   chan struct{}
	ready     bool             // version and server are set
	eventLink *Conn            // events of other connections are ignored
	early     [2]message.Event // events before ready: the last withdrawal and the last publication before it; zero if there was none
	unheld    bool             // the lease ended with its connection and was not renewed
	refused   *Conn            // connection on which the owner last refused to renew the lease
	closed    bool
}

// State returns the state of the version.
func (a *Lease) State() LeaseState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
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
	return a.conn != nil
}

// Release ends the lease without waiting for the owner's answer. It returns false if the lease was already released.
func (a *Lease) Release() bool {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return false
	}
	a.closed = true
	conn, lease, request := a.conn, a.lease, a.request
	a.conn = nil
	close(a.changed)
	a.mu.Unlock()
	a.of.remove(a)
	if conn != nil {
		conn.release(lease, request)
	}
	return true
}

// Collected is called when the handle and its tensors became unreachable without Close. It releases the lease, unless
// memory of the version may be in use. In that case it reports a leak.
func (a *Lease) Collected(leak *driver.Leak) {
	a.of.Go(func() {
		log := a.of.Log.With("name", a.Name, "version", a.Version, "server", a.Server)
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
func (a *Lease) changeLocked(state LeaseState) {
	if a.closed || a.state == state {
		return
	}
	a.state = state
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
func (a *Lease) acquired(owner *message.Hello, version uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Server, a.catalog, a.Version = owner.Server, owner.Published(), version
	a.state.Newest, a.ready = version, true
	for _, e := range a.early {
		a.applyLocked(e)
	}
}

// eventsOf makes the lease accept only events of conn, and returns their handler. Events of another owner, or of a
// connection that ended, are not about this version.
func (a *Lease) eventsOf(conn *Conn) func(message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if conn.reason() == nil { // otherwise the lease may already be on another connection
		a.eventLink, a.early = conn, [2]message.Event{}
	}
	return func(e message.Event) { a.event(conn, e) }
}

// event handles an event of the handle's name. It runs in the goroutine that reads the connection.
func (a *Lease) event(conn *Conn, e message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.eventLink != conn:
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
	state := a.state
	switch {
	case state.Orphaned:
	case e.Kind == message.EventWithdrawn && e.Version >= a.Version:
		state.Withdrawn = true
	case e.Kind == message.EventPublished && e.Version > state.Newest:
		state.Newest = e.Version // the version stays withdrawn, because version numbers are never reused
	}
	a.changeLocked(state)
}

// end implements [dependent]. The version becomes orphaned.
func (a *Lease) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conn = nil
	state := a.state
	state.Orphaned = true
	a.changeLocked(state)
}

// lost implements [dependent]. The lease ends with its connection.
func (a *Lease) lost(conn *Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == conn {
		a.conn, a.unheld = nil, true
		a.notifyLocked()
	}
}

// leased records an acquired lease. It returns false if the handle was closed meanwhile or already has a lease on conn;
// the caller must then release this lease.
func (a *Lease) leased(conn *Conn, lease, request uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.conn == conn {
		return false
	}
	if a.unheld {
		a.notifyLocked()
	}
	a.conn, a.lease, a.request, a.unheld = conn, lease, request, false
	return true
}

// needsResume implements [dependent]. It returns false if the lease is held on conn, was refused on conn, or the
// version no longer exists.
func (a *Lease) needsResume(conn *Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conn != conn && a.refused != conn && !a.state.Orphaned
}

// refusedOn records that the owner refused to renew the lease, so that it is not requested twice on one connection.
func (a *Lease) refusedOn(conn *Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = conn
}

// resume implements [dependent]. It renews the lease, or marks the version as orphaned if the owner no longer
// has it. If the owner refuses, the handle has no lease until the next connection.
func (a *Lease) resume(ctx context.Context, conn *Conn) error {
	if !a.needsResume(conn) {
		return nil
	}
	if conn.Server.Published() != a.catalog {
		a.end()
		return nil
	}
	ask := message.Acquire{Name: a.Name, Version: a.Version}
	id, frame, err := conn.RoundTrip(ctx, Request{Op: message.OpAcquire, Body: ask, Event: a.eventsOf(conn), Late: conn.releaseLate})
	switch {
	case errors.Is(err, status.ErrNotFound):
		a.end()
		return nil
	case refused(err):
		a.refusedOn(conn)
		a.of.Log.Warn("lease not renewed", "name", a.Name, "version", a.Version, "error", err)
		return nil
	case err != nil:
		return err
	}
	defer frame.Files.Close()
	var got message.Acquired
	if err := decodeAnswer(frame, &got); err != nil {
		return err
	}
	if !a.leased(conn, got.Lease, id) {
		conn.release(got.Lease, id)
	}
	return nil
}

// Acquire acquires and maps a version. If wait is set, it waits for an owner. The caller owns the state dict and ends the
// lease with Release. A later owner renews the lease of a placement as one of the version: the memory is mapped already.
func (c *Client) Acquire(ctx context.Context, wait bool, ask message.Acquire) (*Lease, *module.StateDict, error) {
	a := &Lease{of: c.Connector, Name: ask.Name, changed: make(chan struct{})}
	var sd *module.StateDict
	err := c.establish(ctx, wait, func(conn *Conn) (err error) {
		sd, err = c.attach(ctx, conn, a, ask)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return a, sd, nil
}

// attach acquires the lease, maps the memory and fills in a. The caller owns the state dict.
func (c *Client) attach(ctx context.Context, conn *Conn, a *Lease, ask message.Acquire) (*module.StateDict, error) {
	if ask.Device != nil && !conn.placements {
		return nil, &driver.UnsupportedError{Feature: "acquiring a version on another device", Requires: "a newer owner"}
	}
	status.Reach("acquire requested")
	id, frame, err := conn.RoundTrip(ctx, Request{Op: message.OpAcquire, Body: ask, Event: a.eventsOf(conn), Late: conn.releaseLate})
	if err != nil {
		return nil, err
	}
	defer frame.Files.Close()
	status.Reach("acquire answered")
	got, err := message.UnmarshalAcquired(frame.Body)
	if err != nil {
		conn.ignore(id)
		return nil, badAnswer(err)
	}
	var sd *module.StateDict
	manifest, err := c.manifests.Prepare(got.Manifest)
	if err == nil {
		sd, err = c.importer().Attach(manifest, got.Handles, frame.Files)
	}
	if err != nil {
		conn.release(got.Lease, id)
		return nil, badClaim(err)
	}
	status.Reach("acquire mapped")
	for _, storage := range sd.Storages() {
		a.Bytes += storage.Bytes()
	}
	a.Source = message.CutText(got.Source, maxSource)
	a.acquired(&conn.Server, got.Version)
	a.register(conn, got.Lease, id)
	return sd, nil
}

// maxSource is the maximum size of a source in bytes. Owners cut sources to this size.
const maxSource = 1024

// register registers the lease with the client so that it receives events and is renewed after reconnections. If the
// connection has already ended, the renewal starts now.
func (a *Lease) register(conn *Conn, lease, request uint64) {
	a.leased(conn, lease, request) // before it is registered: another goroutine could resume it on the next connection
	if !a.of.add(a) {
		a.end()
		return
	}
	if a.of.Current() != conn { // lost may have run before the lease was registered
		a.lost(conn)
		a.of.onNext(a.resume)
	}
}
