package server

import (
	"context"
	"fmt"
	"math"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// rollbackHolder holds the version that is published again until that is done.
var rollbackHolder = catalog.Holder{ID: math.MaxUint64 - 1, Label: "rollback"}

// Rollback publishes the storages of a superseded version as the next version of its name, on behalf of by. Version 0
// is the newest superseded version that is kept. Nothing is copied. A session that is not zero is charged like the
// publisher of a new version.
func (m *Models) Rollback(ctx context.Context, name string, version uint64, by catalog.Holder, session uint64) (uint64, error) {
	info, err := m.Catalog.Info(name)
	if err != nil {
		return 0, err
	}
	if version == 0 {
		version = previous(info)
	}
	switch version {
	case 0:
		return 0, fmt.Errorf("%w: no superseded version of %q is kept: set a retention, for example serve --retain 2", status.ErrNotFound, name)
	case info.Current:
		return 0, fmt.Errorf("%w: version %d of %q is the current one", status.ErrInvalid, version, name)
	}
	lease, err := m.Catalog.Acquire(name, version, rollbackHolder)
	if err != nil {
		return 0, err
	}
	defer func() { _ = m.Catalog.Release(lease.ID, rollbackHolder.ID) }() // fails only after the catalog is closed
	p := Publication{
		Name: name, Origin: catalog.Origin{Source: fmt.Sprintf("rollback to version %d", version), Publisher: by},
		Digests: m.digests.job(lease.StateDict()) != nil,
	}
	if session != 0 {
		if p.charge, err = m.chargeAgain(session, lease); err != nil {
			return 0, err
		}
	}
	p.StateDict = lease.StateDict().Alias()
	return m.Publish(ctx, p)
}

// previous returns the newest superseded version that can be acquired; 0 for none.
func previous(info catalog.Info) uint64 {
	for _, v := range info.Versions {
		if !v.Current && !v.Withdrawn {
			return v.Version
		}
	}
	return 0
}

// chargeAgain charges a session for the version of a lease.
func (m *Models) chargeAgain(session uint64, lease *catalog.Lease) (*charge, error) {
	out := m.exports.of(lease.StateDict())
	var manifest message.Manifest
	if err := message.Unmarshal(out.Manifest, &manifest); err != nil {
		return nil, err
	}
	c := charge{session: session, Usage: Usage{
		Versions: 1, Storages: len(out.Handles), Bytes: lease.StateDict().Bytes(), Manifests: ManifestCost(&manifest),
	}}
	if err := m.quotas.take(c, m.Limits.Publish, m.Limits.PublishTotal); err != nil {
		return nil, err
	}
	return &c, nil
}

func (m *modelOperations) rollback(ctx context.Context, r *session.Request) (session.Reply, error) {
	var in message.Rollback
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if err := c.may(access.Publish, in.Name); err != nil {
		return nil, err
	}
	if err := c.mayChange(changeRollback, "name", in.Name, "to", in.Version); err != nil {
		return nil, err
	}
	version, err := m.Rollback(ctx, in.Name, in.Version, c.holder(), r.Session.ID)
	if err != nil {
		return nil, status.Absent(err)
	}
	c.audit(changeRollback, "name", in.Name, "version", version, "to", in.Version)
	return &answer{body: message.Published{Version: version}}, nil
}
