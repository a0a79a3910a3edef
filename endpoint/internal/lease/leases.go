// Package lease attaches published versions and keeps the leases that a client has of them, across connections.
package lease

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Leases are those of one client.
type Leases struct {
	connector.Set[*Lease]
	conn      *connector.Connector
	importer  transfer.Importer
	log       *slog.Logger
	manifests transfer.Manifests
}

// New makes the leases of a client. The caller adds them to the dependents of the connector. The importer maps memory.
func New(conn *connector.Connector, importer transfer.Importer, log *slog.Logger) *Leases {
	return &Leases{conn: conn, importer: importer, log: log}
}

// Acquire attaches a version, 0 for the newest. The caller owns the state dict, and ends the lease with Release.
func (s *Leases) Acquire(ctx context.Context, name string, version uint64) (*Lease, *module.StateDict, error) {
	a := &Lease{of: s, Name: name, changed: make(chan struct{})}
	for {
		var sd *module.StateDict
		l, err := s.conn.Connected(ctx)
		if err == nil {
			sd, err = s.attach(ctx, l, a, message.Acquire{Name: name, Version: version})
		}
		if err == nil {
			return a, sd, nil
		}
		// A connection that broke takes its lease with it, so asking again takes nothing twice.
		if l == nil || !errors.Is(err, status.ErrUnavailable) || ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

// attach asks for the lease, maps the memory and fills in the lease. The caller owns the state dict.
func (s *Leases) attach(ctx context.Context, l *link.Link, a *Lease, ask message.Acquire) (*module.StateDict, error) {
	id, frame, err := l.RoundTrip(ctx, link.Request{Op: message.OpAcquire, Body: ask, Event: a.eventsOf(l), Late: l.ReleaseLate})
	if err != nil {
		return nil, err
	}
	defer frame.Files.Close()
	got, err := message.UnmarshalAcquired(frame.Body)
	if err != nil {
		l.Ignore(id)
		return nil, link.BadAnswer(err)
	}
	var sd *module.StateDict
	manifest, err := s.manifests.Prepare(got.Manifest)
	if err == nil {
		sd, err = s.importer.Attach(manifest, got.Handles, frame.Files)
	}
	if err != nil {
		l.Release(got.Lease, id)
		return nil, link.BadClaim(err)
	}
	for _, storage := range sd.Storages() {
		a.Bytes += storage.Bytes()
	}
	a.acquired(l.Server.Server, got.Version)
	s.add(a, l, got.Lease, id)
	return sd, nil
}

// add makes a lease known, so that it hears of events and is taken again after a reconnection. Where the connection
// ended while it was made, that begins now.
func (s *Leases) add(a *Lease, l *link.Link, lease, request uint64) {
	a.leased(l, lease, request) // before others know it, who could take it on the next connection
	if !s.Add(a) {
		a.End()
		return
	}
	if s.conn.Current() != l { // Lost may have been called before the lease was there
		a.Lost(l)
		s.conn.OnNext(a.Resume)
	}
}
