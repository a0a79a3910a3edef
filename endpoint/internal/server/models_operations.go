package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// modelOperations implements the operations on models.
type modelOperations struct{ *Models }

// acquire acquires a lease and sends the memory. It subscribes the client to the name before it answers, so the
// client receives every later event.
//
// With a device the client gets a placement. The lease is taken here, in the order of arrival. The run waits for the
// copy, so the reader continues.
func (m *modelOperations) acquire(r *session.Request) (session.Run, session.Place, error) {
	var in message.Acquire
	if err := r.Decode(&in); err != nil {
		return nil, session.InOrder, err
	}
	a := &acquisition{models: m.Models, session: r.Session, request: r.ID}
	if err := a.take(in); err != nil {
		return nil, session.InOrder, err
	}
	if in.Device == nil {
		return a, session.InOrder, nil
	}
	if in.Part != nil {
		a.undo()
		return nil, session.InOrder, fmt.Errorf("%w: a part has no placements: acquire it on the device of its publication, or the whole version", errors.ErrUnsupported)
	}
	if err := a.place(driver.UUID(*in.Device)); err != nil {
		a.undo()
		return nil, session.InOrder, err
	}
	return a, session.Async, nil
}

// acquisition is a lease that a client is about to receive.
type acquisition struct {
	models  *Models
	session *session.Session
	request uint64
	sub     *session.Subscription
	lease   *catalog.Lease
	part    part // of the version, or the whole
	replied bool // the reply owns the lease
}

// take acquires the version and subscribes the client to the name.
func (a *acquisition) take(in message.Acquire) error {
	m, ses, c := a.models, a.session, clientOf(a.session)
	if err := c.may(access.Acquire, in.Name); err != nil {
		return err
	}
	if err := m.newestAdopted(in.Name, in.Version); err != nil {
		return err
	}
	// A client that acquires an old version receives an event about the newest one at once.
	source := &namesSource{of: m.Catalog, names: []string{in.Name}, current: in.Version != 0}
	sub, err := ses.Events.Add(a.request, source)
	if err != nil {
		return err
	}
	lease, err := m.Catalog.Acquire(in.Name, in.Version, c.holder())
	if err != nil && in.Version != 0 { // perhaps a reader of an earlier owner renews its lease on a withdrawn version
		if renewed, renewal := m.Catalog.Renew(in.Name, in.Version, adoptedHolder.ID, c.holder()); renewal == nil {
			lease, err, source.withdrawn = renewed, nil, in.Version
		}
	}
	if err != nil {
		ses.Events.Remove(a.request)
		return m.absent(in.Name, status.Absent(err))
	}
	if a.part, err = recordOf(lease.Record()).part(lease.Version, in.Part); err != nil {
		ses.Events.Remove(a.request)
		return errors.Join(err, m.Catalog.Release(lease.ID, ses.ID))
	}
	status.Reach("acquire leased")
	c.leases.put(lease.ID, a.request)
	a.sub, a.lease = sub, lease
	return nil
}

// place replaces the lease by one of the version's placement on a device. After an error the lease is unchanged.
func (a *acquisition) place(device driver.UUID) error {
	c := clientOf(a.session)
	placed, err := a.models.placer.lease(c, a.lease, device)
	if err != nil || placed == a.lease {
		return err
	}
	c.leases.drop(a.lease.ID)
	c.leases.put(placed.ID, a.request)
	_ = a.models.Catalog.Release(a.lease.ID, a.session.ID) // fails only after the session's end, which releases all
	a.lease = placed
	return nil
}

// undo releases the lease.
func (a *acquisition) undo() {
	if err := a.models.Catalog.Release(a.lease.ID, a.session.ID); err == nil {
		a.session.Events.Remove(clientOf(a.session).leases.drop(a.lease.ID))
	}
}

// Run implements session.Run. It waits for a placement that is being made.
func (a *acquisition) Run(ctx context.Context, _ *session.Request) (session.Reply, error) {
	if made := a.lease.Made(); made != nil {
		select {
		case <-made:
		case <-ctx.Done():
			return nil, ended.Cause(ctx)
		}
		if err := a.lease.Err(); err != nil {
			return nil, err
		}
	}
	a.replied = true
	out := a.part.Export
	if a.lease.Made() != nil { // a placement
		out = recordOf(a.lease.Record()).export
	}
	return &sharedAnswer{
		answer: answer{after: func() { a.session.Events.Begin(a.sub) }, undo: a.undo},
		head:   message.AppendAcquiredHead(nil, a.lease.ID, a.lease.Name, a.lease.Version, out.Optional), tail: out.Tail,
		files: out.Files, storages: out.Storages,
	}, nil
}

// End implements session.Run.
func (a *acquisition) End() {
	if !a.replied {
		a.undo()
	}
}

func (m *modelOperations) release(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Release
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	ses, c := r.Session, clientOf(r.Session)
	var done message.Released
	var failure error
	for _, lease := range in.Leases {
		if err := m.Catalog.Release(lease, ses.ID); err != nil {
			failure = err
			continue
		}
		ses.Events.Remove(c.leases.drop(lease))
		done.Count++
	}
	if failure != nil {
		return nil, failure
	}
	return &answer{body: done}, nil
}

func (m *modelOperations) publish(ctx context.Context, r *session.Request) (session.Reply, error) {
	var in message.Publish
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if err := CheckName(in.Name); err != nil {
		return nil, err
	}
	if err := c.may(access.Publish, in.Name); err != nil {
		return nil, err
	}
	retain, err := retentionOf(in.Retain)
	if err != nil {
		return nil, err
	}
	rec := &record{models: m.Models, Publication: Publication{
		Name: in.Name, Origin: catalog.Origin{Source: in.Source, Publisher: c.holder()}, Digests: in.Digests, After: in.After, Retain: retain, Current: in.Current,
	}}
	if in.Part != nil {
		if rec.Part = *in.Part; rec.Part.Of == 0 {
			return nil, fmt.Errorf("%w: part %d needs the number of parts", status.ErrPart, in.Part.Index)
		}
		if err := checkPart(rec.Part); err != nil { // before its memory is mapped
			return nil, err
		}
	}
	if err := rec.receive(c, &in, r.Files); err != nil {
		return nil, errors.Join(err, rec.Close())
	}
	bytes := rec.StateDict.Bytes()
	version, err := m.publishReceived(ctx, rec)
	if err != nil {
		return nil, status.Absent(err)
	}
	attrs := []any{"name", in.Name, "version", version, "bytes", bytes}
	if in.Part != nil {
		attrs = append(attrs, "part", in.Part.Index, "of", in.Part.Of)
	}
	c.audit(changePublish, attrs...)
	return &answer{body: message.Published{Version: version}}, nil
}

// receive charges the client for a publication and maps its memory. The caller closes the record after an error.
func (r *record) receive(c *client, in *message.Publish, files *wire.Files) error {
	m := r.models
	charged, err := newCharge(c.session.ID, in, files)
	if err != nil {
		return err
	}
	if err := m.quotas.take(charged, m.Limits.Publish, m.Limits.PublishTotal); err != nil {
		return err
	}
	r.charge = charged
	if r.StateDict, err = (transfer.Importer{Devices: m.Devices}).StateDict(&in.Manifest, in.Handles, files); err != nil {
		return err
	}
	return c.mayChange(changePublish, "name", in.Name, "bytes", r.StateDict.Bytes())
}

func (m *modelOperations) withdraw(ctx context.Context, r *session.Request) (session.Reply, error) {
	var in message.Withdraw
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if err := c.may(access.Withdraw, in.Name); err != nil {
		return nil, err
	}
	if err := c.mayChange(changeWithdraw, "name", in.Name); err != nil {
		return nil, err
	}
	if err := m.Withdraw(ctx, in.Name, in.Current); err != nil {
		return nil, status.Absent(err)
	}
	c.audit(changeWithdraw, "name", in.Name)
	return &answer{body: message.Withdrawn{}}, nil
}

func (m *modelOperations) list(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.List
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	return &answer{body: m.page(in, clientOf(r.Session).sees(access.List))}, nil
}

func (m *modelOperations) info(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Info
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	if err := clientOf(r.Session).may(access.List, in.Name); err != nil {
		return nil, err
	}
	info, err := m.Catalog.Info(in.Name)
	if err != nil {
		return nil, m.absent(in.Name, status.Absent(err))
	}
	model, loading := m.fitInfo(info), m.loads.get(in.Name)
	if !in.Manifest {
		return &answer{body: message.InfoResult{Model: model, Loading: loading}}, nil
	}
	manifest, err := m.manifest(clientOf(r.Session), in.Name, in.Version)
	if err != nil {
		return nil, err
	}
	if loading != nil { // it follows the manifest, which therefore cannot be shared
		return &answer{body: struct {
			Model    message.ModelInfo  `cbor:"1,keyasint"`
			Manifest message.RawMessage `cbor:"2,keyasint"`
			Loading  *message.Loading   `cbor:"3,keyasint"`
		}{model, manifest, loading}}, nil
	}
	head, err := message.MarshalInfoHead(&model)
	if err != nil {
		return nil, err
	}
	return &sharedAnswer{head: head, tail: manifest}, nil
}

// manifest returns the encoded manifest of a version. It holds a lease for the session while it runs.
func (m *modelOperations) manifest(c *client, name string, version uint64) ([]byte, error) {
	if err := m.newestAdopted(name, version); err != nil {
		return nil, err
	}
	lease, err := m.Catalog.Acquire(name, version, c.holder())
	if err != nil {
		return nil, status.Absent(err)
	}
	defer func() { _ = m.Catalog.Release(lease.ID, c.session.ID) }()
	return recordOf(lease.Record()).export.Manifest, nil
}

// digests answers when the digests of a version are computed. It holds the version only to look it up, so waiting
// keeps no memory.
func (m *modelOperations) digests(ctx context.Context, r *session.Request) (session.Reply, error) {
	var in message.Digests
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	c := clientOf(r.Session)
	if err := c.may(access.List, in.Name); err != nil {
		return nil, err
	}
	if err := m.newestAdopted(in.Name, in.Version); err != nil {
		return nil, err
	}
	lease, err := m.Catalog.Acquire(in.Name, in.Version, c.holder())
	if err != nil {
		return nil, m.absent(in.Name, status.Absent(err))
	}
	job := recordOf(lease.Record()).digests
	part, err := recordOf(lease.Record()).part(lease.Version, in.Part)
	_ = m.Catalog.Release(lease.ID, r.Session.ID) // best effort: the lease exists
	if err != nil {
		return nil, err
	}
	if job == nil {
		return nil, fmt.Errorf("%w: version %d was published without digests of the owner; publish it with digests",
			status.ErrNotFound, lease.Version)
	}
	if err := job.wait(ctx); err != nil {
		return nil, err
	}
	return &answer{body: message.Digested{Version: lease.Version, Whole: job.whole[:], Tensors: job.tensors[part.from*len(job.whole) : part.to*len(job.whole)]}}, nil
}
