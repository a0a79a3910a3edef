package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// modelOperations are those on published models.
type modelOperations struct {
	*versions
	devices transfer.Devices
	limits  *Limits
}

// acquire takes a lease and hands out the memory. Before the client knows of the version, it is on the list of those
// who are told when a newer one comes.
func (o *modelOperations) acquire(_ context.Context, r request) (reply, error) {
	var in message.Acquire
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	ses := r.Session
	// Who asks for a certain version may have to hear that it is not the newest.
	sub, err := ses.Events.Add(r.ID, &namesSource{of: o.catalog, names: []string{in.Name}, current: in.Version != 0})
	if err != nil {
		return reply{}, err
	}
	lease, err := o.catalog.Acquire(in.Name, in.Version, ses.Holder())
	if err != nil {
		ses.Events.Remove(r.ID)
		return reply{}, o.loads.absent(in.Name, status.Absent(err))
	}
	ses.Leases.Put(lease.ID, r.ID)
	out := o.exports.of(lease.StateDict())
	return reply{
		Head: message.AppendAcquiredHead(nil, lease.ID, lease.Name, lease.Version), Shared: out.Tail,
		Files: out.Files, Storages: out.Storages,
		After: func() { ses.Events.Begin(sub) },
		Undo: func() {
			if err := o.catalog.Release(lease.ID, ses.ID); err == nil {
				ses.Events.Remove(ses.Leases.Drop(lease.ID))
			}
		},
	}, nil
}

func (o *modelOperations) release(_ context.Context, r request) (reply, error) {
	var in message.Release
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	ses := r.Session
	var done message.Released
	var failure error
	for _, lease := range in.Leases {
		if err := o.catalog.Release(lease, ses.ID); err != nil {
			failure = err
			continue
		}
		ses.Events.Remove(ses.Leases.Drop(lease))
		done.Count++
	}
	if failure != nil {
		return reply{}, failure
	}
	return reply{Body: done}, nil
}

func (o *modelOperations) publish(ctx context.Context, r request) (reply, error) {
	var in message.Publish
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	if err := checkName(in.Name); err != nil {
		return reply{}, err
	}
	c, err := newCharge(r.Session.ID, &in, r.Files)
	if err == nil {
		err = o.quotas.take(c, o.limits)
	}
	if err != nil {
		return reply{}, err
	}
	sd, err := transfer.Importer{Devices: o.devices}.StateDict(&in.Manifest, in.Handles, r.Files)
	if err != nil {
		o.quotas.giveBack(c)
		return reply{}, err
	}
	origin := catalog.Origin{Source: in.Source, Publisher: r.Session.Holder()}
	version, err := o.versions.publish(ctx, publication{name: in.Name, sd: sd, origin: origin, charge: &c, digests: in.Digests})
	if err != nil {
		return reply{}, status.Absent(err)
	}
	return reply{Body: message.Published{Version: version}}, nil
}

func (o *modelOperations) withdraw(_ context.Context, r request) (reply, error) {
	var in message.Withdraw
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	if err := o.versions.withdraw(in.Name); err != nil {
		return reply{}, status.Absent(err)
	}
	return reply{Body: message.Withdrawn{}}, nil
}

func (o *modelOperations) list(_ context.Context, r request) (reply, error) {
	var in message.List
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	return reply{Body: o.listModels(in)}, nil
}

func (o *modelOperations) info(_ context.Context, r request) (reply, error) {
	var in message.Info
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	info, err := o.catalog.Info(in.Name)
	if err != nil {
		return reply{}, o.loads.absent(in.Name, status.Absent(err))
	}
	model, loading := o.fitInfo(info), o.loads.get(in.Name)
	if !in.Manifest {
		return reply{Body: message.InfoResult{Model: model, Loading: loading}}, nil
	}
	manifest, err := o.manifest(r.Session, in.Name, in.Version)
	if err != nil {
		return reply{}, err
	}
	if loading != nil { // stands behind the manifest, which cannot be shared then
		return reply{Body: struct {
			Model    message.ModelInfo  `cbor:"1,keyasint"`
			Manifest message.RawMessage `cbor:"2,keyasint"`
			Loading  *message.Loading   `cbor:"3,keyasint"`
		}{model, manifest, loading}}, nil
	}
	head, err := message.MarshalInfoHead(&model)
	return reply{Head: head, Shared: manifest}, err
}

// manifest is the encoded manifest of a version, which is held for a moment by the session itself.
func (o *modelOperations) manifest(ses *session.Session, name string, version uint64) ([]byte, error) {
	lease, err := o.catalog.Acquire(name, version, ses.Holder())
	if err != nil {
		return nil, status.Absent(err)
	}
	defer func() { _ = o.catalog.Release(lease.ID, ses.ID) }()
	return o.exports.of(lease.StateDict()).Manifest, nil
}

// digested answers when the digests of a version are computed. The version is held only until it is found: waiting for
// digests keeps no memory.
func (o *modelOperations) digested(ctx context.Context, r request) (reply, error) {
	var in message.Digests
	if err := r.Decode(&in); err != nil {
		return reply{}, err
	}
	lease, err := o.catalog.Acquire(in.Name, in.Version, r.Session.Holder())
	if err != nil {
		return reply{}, o.loads.absent(in.Name, status.Absent(err))
	}
	job := o.digests.job(lease.StateDict())
	_ = o.catalog.Release(lease.ID, r.Session.ID) // it was taken above
	if job == nil {
		return reply{}, fmt.Errorf("%w: version %d has no digests of the owner, because they were not asked for when it was published",
			status.ErrNotFound, lease.Version)
	}
	if err := job.wait(ctx); err != nil {
		return reply{}, err
	}
	return reply{Body: message.Digested{Version: lease.Version, Whole: job.whole[:], Tensors: job.tensors}}, nil
}
