package models

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Operations returns the operations on models that clients can request.
func (m *Models) Operations() map[message.Op]*session.Operation {
	return map[message.Op]*session.Operation{
		message.OpAcquire:  {Call: m.doAcquire},
		message.OpRelease:  {Call: m.doRelease},
		message.OpPublish:  {Call: m.doPublish, Long: true, Files: true},
		message.OpWithdraw: {Call: m.doWithdraw, Long: true},
		message.OpList:     {Call: m.doList},
		message.OpInfo:     {Call: m.doInfo},
		message.OpWatch:    {Call: m.doWatch},
		message.OpDigests:  {Call: m.doDigests, Long: true},
	}
}

// doAcquire acquires a lease and sends the memory. It subscribes the client to the name before it answers, so the
// client receives every later event.
func (m *Models) doAcquire(_ context.Context, r session.Request) (session.Reply, error) {
	var in message.Acquire
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	ses := r.Session
	// A client that acquires an old version receives an event about the newest one at once.
	sub, err := ses.Events.Add(r.ID, &namesSource{of: m.Catalog, names: []string{in.Name}, current: in.Version != 0})
	if err != nil {
		return session.Reply{}, err
	}
	lease, err := m.Catalog.Acquire(in.Name, in.Version, ses.Holder())
	if err != nil {
		ses.Events.Remove(r.ID)
		return session.Reply{}, m.loads.absent(in.Name, status.Absent(err))
	}
	ses.Leases.Put(lease.ID, r.ID)
	out := m.exports.of(lease.StateDict())
	return session.Reply{
		Head: message.AppendAcquiredHead(nil, lease.ID, lease.Name, lease.Version, out.Sourced), Shared: out.Tail,
		Files: out.Files, Storages: out.Storages,
		After: func() { ses.Events.Begin(sub) },
		Undo: func() {
			if err := m.Catalog.Release(lease.ID, ses.ID); err == nil {
				ses.Events.Remove(ses.Leases.Drop(lease.ID))
			}
		},
	}, nil
}

func (m *Models) doRelease(_ context.Context, r session.Request) (session.Reply, error) {
	var in message.Release
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	ses := r.Session
	var done message.Released
	var failure error
	for _, lease := range in.Leases {
		if err := m.Catalog.Release(lease, ses.ID); err != nil {
			failure = err
			continue
		}
		ses.Events.Remove(ses.Leases.Drop(lease))
		done.Count++
	}
	if failure != nil {
		return session.Reply{}, failure
	}
	return session.Reply{Body: done}, nil
}

func (m *Models) doPublish(ctx context.Context, r session.Request) (session.Reply, error) {
	var in message.Publish
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	if err := CheckName(in.Name); err != nil {
		return session.Reply{}, err
	}
	c, err := newCharge(r.Session.ID, &in, r.Files)
	if err == nil {
		err = m.quotas.take(c, &m.One, &m.All)
	}
	if err != nil {
		return session.Reply{}, err
	}
	sd, err := transfer.Importer{Devices: m.Devices}.StateDict(&in.Manifest, in.Handles, r.Files)
	if err != nil {
		m.quotas.giveBack(c)
		return session.Reply{}, err
	}
	origin := catalog.Origin{Source: in.Source, Publisher: r.Session.Holder()}
	version, err := m.Publish(ctx, Publication{Name: in.Name, StateDict: sd, Origin: origin, Digests: in.Digests, After: in.After, charge: &c})
	if err != nil {
		return session.Reply{}, status.Absent(err)
	}
	return session.Reply{Body: message.Published{Version: version}}, nil
}

func (m *Models) doWithdraw(_ context.Context, r session.Request) (session.Reply, error) {
	var in message.Withdraw
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	if err := m.Withdraw(in.Name); err != nil {
		return session.Reply{}, status.Absent(err)
	}
	return session.Reply{Body: message.Withdrawn{}}, nil
}

func (m *Models) doList(_ context.Context, r session.Request) (session.Reply, error) {
	var in message.List
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	return session.Reply{Body: m.page(in)}, nil
}

func (m *Models) doInfo(_ context.Context, r session.Request) (session.Reply, error) {
	var in message.Info
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	info, err := m.Catalog.Info(in.Name)
	if err != nil {
		return session.Reply{}, m.loads.absent(in.Name, status.Absent(err))
	}
	model, loading := m.fitInfo(info), m.loads.get(in.Name)
	if !in.Manifest {
		return session.Reply{Body: message.InfoResult{Model: model, Loading: loading}}, nil
	}
	manifest, err := m.manifest(r.Session, in.Name, in.Version)
	if err != nil {
		return session.Reply{}, err
	}
	if loading != nil { // it follows the manifest, which therefore cannot be shared
		return session.Reply{Body: struct {
			Model    message.ModelInfo  `cbor:"1,keyasint"`
			Manifest message.RawMessage `cbor:"2,keyasint"`
			Loading  *message.Loading   `cbor:"3,keyasint"`
		}{model, manifest, loading}}, nil
	}
	head, err := message.MarshalInfoHead(&model)
	return session.Reply{Head: head, Shared: manifest}, err
}

// manifest returns the encoded manifest of a version. It holds a lease for the session while it runs.
func (m *Models) manifest(ses *session.Session, name string, version uint64) ([]byte, error) {
	lease, err := m.Catalog.Acquire(name, version, ses.Holder())
	if err != nil {
		return nil, status.Absent(err)
	}
	defer func() { _ = m.Catalog.Release(lease.ID, ses.ID) }()
	return m.exports.of(lease.StateDict()).Manifest, nil
}

// doDigests answers when the digests of a version are computed. It holds the version only to look it up, so waiting
// keeps no memory.
func (m *Models) doDigests(ctx context.Context, r session.Request) (session.Reply, error) {
	var in message.Digests
	if err := r.Decode(&in); err != nil {
		return session.Reply{}, err
	}
	lease, err := m.Catalog.Acquire(in.Name, in.Version, r.Session.Holder())
	if err != nil {
		return session.Reply{}, m.loads.absent(in.Name, status.Absent(err))
	}
	job := m.digests.job(lease.StateDict())
	_ = m.Catalog.Release(lease.ID, r.Session.ID) // best effort: the lease exists
	if job == nil {
		return session.Reply{}, fmt.Errorf("%w: version %d was published without digests of the owner; publish it with digests",
			status.ErrNotFound, lease.Version)
	}
	if err := job.wait(ctx); err != nil {
		return session.Reply{}, err
	}
	return session.Reply{Body: message.Digested{Version: lease.Version, Whole: job.whole[:], Tensors: job.tensors}}, nil
}
