package server

import (
	"context"
	"errors"
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
	old := recordOf(lease.Record())
	r := &record{models: m, Publication: Publication{
		Name: name, StateDict: old.StateDict.Alias(), Origin: catalog.Origin{Source: fmt.Sprintf("rollback to version %d", version), Publisher: by},
		Digests: old.digests != nil, Parts: old.Parts,
	}}
	if session != 0 {
		if err := r.chargeAgain(session, old); err != nil {
			return 0, errors.Join(err, r.Close())
		}
	}
	return m.publishRecord(ctx, r)
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

// chargeAgain charges a session for the content of another version: as its publisher, if that was a client.
func (r *record) chargeAgain(session uint64, old *record) error {
	c := charge{session: session, Usage: old.usage()}
	if c.Storages < len(old.export.Handles) { // the owner has published it, or a part of it
		var manifest message.Manifest
		if err := message.Unmarshal(old.export.Manifest, &manifest); err != nil {
			return err
		}
		c.Usage = usageOf(&manifest, old.export.Handles, r.Digests)
		c.Bytes = old.StateDict.Bytes()
	}
	if err := r.models.quotas.take(c, r.models.Limits.Publish, r.models.Limits.PublishTotal); err != nil {
		return err
	}
	r.charge = c
	return nil
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
