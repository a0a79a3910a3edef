// Package lease acquires published versions and keeps the client's leases across connections.
package lease

import (
	"context"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Leases holds the leases of one client.
type Leases struct {
	connector.Set[*Lease]
	conn      *connector.Connector
	importer  transfer.Importer
	log       *slog.Logger
	manifests transfer.Manifests
}

// New returns the leases of a client. The caller adds them to the dependents of the connector. importer maps memory.
func New(conn *connector.Connector, importer transfer.Importer, log *slog.Logger) *Leases {
	return &Leases{conn: conn, importer: importer, log: log}
}

// Acquire acquires a version, or the newest one if version is 0, and maps it. If wait is set, it waits for an owner.
// The caller owns the state dict and ends the lease with Release.
func (s *Leases) Acquire(ctx context.Context, wait bool, name string, version uint64) (*Lease, *module.StateDict, error) {
	a := &Lease{of: s, Name: name, changed: make(chan struct{})}
	var sd *module.StateDict
	err := s.conn.Establish(ctx, wait, func(l *link.Link) (err error) {
		sd, err = s.attach(ctx, l, a, message.Acquire{Name: name, Version: version})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return a, sd, nil
}

// attach acquires the lease, maps the memory and fills in a. The caller owns the state dict.
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
	a.Source = message.CutText(got.Source, maxSource)
	a.acquired(l.Server.Server, got.Version)
	s.add(a, l, got.Lease, id)
	return sd, nil
}

// maxSource is the maximum size of a source in bytes. Owners cut sources to this size.
const maxSource = 1024

// add registers a lease so that it receives events and is renewed after reconnections. If the connection has already
// ended, the renewal starts now.
func (s *Leases) add(a *Lease, l *link.Link, lease, request uint64) {
	a.leased(l, lease, request) // before it is registered: another goroutine could resume it on the next connection
	if !s.Add(a) {
		a.End()
		return
	}
	if s.conn.Current() != l { // Lost may have run before the lease was registered
		a.Lost(l)
		s.conn.OnNext(a.Resume)
	}
}
