package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
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
	// Part is the part of the version that was acquired; nil for the whole. Digest is the digest of the whole if the owner
	// sent it with a part.
	Part   *message.Part
	Digest []byte

	record
	catalog string // id of the owner's versions; a later owner may adopt them

	// Guarded by the connector's lock.
	lease     uint64 // id of the lease on the connection that holds it
	request   uint64 // id of its request; events carry it
	newest    uint64 // highest version in an event of a publication
	withdrawn uint64 // highest version in an event of a withdrawal
	orphaned  bool
	released  bool
}

// State returns the state of the version.
func (a *Lease) State() LeaseState {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	return a.stateLocked()
}

func (a *Lease) stateLocked() LeaseState {
	return LeaseState{Newest: max(a.Version, a.newest), Withdrawn: a.withdrawn > 0 && a.withdrawn >= a.Version, Orphaned: a.orphaned}
}

// Changed returns a channel that is closed at the next change. After Release it is closed.
func (a *Lease) Changed() <-chan struct{} {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	return a.changed.Channel()
}

// Held reports whether the owner currently has the lease.
func (a *Lease) Held() bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	return a.held
}

// Release ends the lease without waiting for the owner's answer. It returns false if the lease was already released.
func (a *Lease) Release() bool {
	a.of.mu.Lock()
	first := !a.released
	a.released = true
	a.changed.End()
	a.of.mu.Unlock()
	if first {
		a.of.end(&a.record, errLeaseReleased)
	}
	return first
}

var errLeaseReleased = status.Closed("the lease")

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

// event handles an event of the version's name on a connection. It runs in the goroutine that reads the connection. Events
// of earlier connections are not about this version. Events may arrive before the answer, so they are not compared with
// the version here.
func (a *Lease) event(conn *Conn, e message.Event) {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	if a.conn != conn || a.orphaned {
		return
	}
	before := a.stateLocked()
	switch e.Kind {
	case message.EventWithdrawn:
		a.withdrawn = max(a.withdrawn, e.Version)
	case message.EventPublished: // the version stays withdrawn, because version numbers are never reused
		a.newest = max(a.newest, e.Version)
	}
	if a.stateLocked() != before {
		a.changed.Notify()
	}
}

// acquireLocked returns the request that acquires the lease on conn, and accepts events of conn from now on.
func (a *Lease) acquireLocked(conn *Conn, ask message.Acquire) Request {
	a.conn = conn
	return Request{Op: message.OpAcquire, Body: ask, Event: func(e message.Event) { a.event(conn, e) }, Late: conn.releaseLate}
}

var errOtherCatalog = fmt.Errorf("%w: the owner was replaced", status.ErrNotFound)

// askLocked implements [content].
func (a *Lease) askLocked(conn *Conn) (Request, error) {
	if a.orphaned || conn.Server.Published() != a.catalog {
		return Request{}, errOtherCatalog
	}
	return a.acquireLocked(conn, message.Acquire{Name: a.Name, Version: a.Version, Part: a.Part}), nil
}

// acceptLocked implements [content].
func (a *Lease) acceptLocked(frame wire.Frame) (more bool, err error) {
	var got message.Acquired
	if err := decodeAnswer(frame, &got); err != nil {
		return false, err
	}
	a.lease, a.request = got.Lease, frame.ID
	return false, nil
}

// refused implements [content]. If the owner does not have the version, it is orphaned. Otherwise the lease is requested
// again on the next connection.
func (a *Lease) refused(err error) {
	if !errors.Is(err, status.ErrNotFound) {
		a.of.Go(func() { a.of.Log.Warn("lease not renewed", "name", a.Name, "version", a.Version, "error", err) })
		return
	}
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	a.orphanLocked()
}

func (a *Lease) orphanLocked() {
	if !a.orphaned && !a.released {
		a.orphaned = true
		a.changed.Notify()
	}
}

// lostLocked implements [content].
func (a *Lease) lostLocked(*Conn) {}

// endLocked implements [content]. The client was closed, or the lease released.
func (a *Lease) endLocked(error) { a.orphanLocked() }

// release implements [content].
func (a *Lease) release(conn *Conn) { conn.release(a.lease, a.request) }

// Acquire acquires and maps a version or a part. If wait is set, it waits for an owner. The caller owns the state dict and ends the
// lease with Release. A later owner renews the lease of a placement as one of the version: the memory is mapped already.
func (c *Client) Acquire(ctx context.Context, wait bool, ask message.Acquire) (*Lease, *module.StateDict, error) {
	a := &Lease{Name: ask.Name, Part: ask.Part}
	a.record = record{of: c.Connector, content: a}
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
	c.mu.Lock()
	request := a.acquireLocked(conn, ask)
	a.newest, a.withdrawn = 0, 0
	c.mu.Unlock()
	id, frame, err := conn.RoundTrip(ctx, request)
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
	a.Source, a.Digest = message.CutText(got.Source, maxSource), bytes.Clone(got.Digest)
	c.mu.Lock()
	defer c.mu.Unlock()
	a.Server, a.catalog, a.Version, a.lease, a.request = conn.Server.Server, conn.Server.Published(), got.Version, got.Lease, id
	if !c.addHeldLocked(&a.record, conn) {
		c.endLocked(&a.record, errClientClosed)
	}
	return sd, nil
}

// maxSource is the maximum size of a source in bytes. Owners cut sources to this size.
const maxSource = 1024
