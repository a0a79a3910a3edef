package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/persist"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ModelsConfig holds the dependencies and settings of a server's models.
type ModelsConfig struct {
	Log     *slog.Logger          // for operators
	Devices transfer.Devices      // devices on which clients may publish
	Names   *transfer.MemoryNames // names of the server's shared memory
	Retain  catalog.Retention     // superseded versions that are kept without readers
	Limits  status.Limits         // of the server
	Places  []catalog.Place       // devices on which versions may have placements
	// RenewalTime is the time that readers of an earlier owner have to renew their leases; 0 means 10 s.
	RenewalTime time.Duration
	// Digest computes the digests of a state dict, like [module.Digests].
	Digest func(ctx context.Context, sd *module.StateDict, workers int) (map[string]module.Digest, error)
}

// Models holds the published versions of a server and the usage of clients that publish. Each version is a record of the
// catalog. Its methods are safe for concurrent use.
type Models struct {
	ModelsConfig
	Catalog    *catalog.Catalog // names, versions and leases
	quotas     quotas
	loads      loads
	incomplete incompletes // versions of which parts are published
	digests    digester
	keeping    *keeping // nil if the versions end with this server
	expiry     expiry
	renewal    *time.Timer // releases the versions of readers that have not renewed their leases
	changes    gate
	placer     placer

	notAdopted notAdopted // of the store

	store     persist.Store // of keeping
	again     keepAgain     // the versions are not kept since a failed handover
	catalogID string        // of kept or adopted versions; empty if they began with this server and end with it
}

// NewModels returns the models of a server without versions.
func NewModels(c ModelsConfig) *Models {
	if c.RenewalTime <= 0 {
		c.RenewalTime = renewalTime
	}
	m := &Models{ModelsConfig: c}
	m.digests.of = m
	m.renewal = time.AfterFunc(math.MaxInt64, func() { m.Catalog.ReleaseHolder(adoptedHolder.ID) })
	m.Catalog = catalog.New(catalog.Options{
		Retain: c.Retain, Record: m.record, Freed: m.freed, Places: c.Places, Unplaced: m.unplaced, Unused: m.expire,
	})
	m.placer.start(m, c.Places)
	return m
}

// StopDigests cancels the computation of digests. Waiters get an error.
func (m *Models) StopDigests() { m.digests.close() }

// StopParts refuses parts of versions from now on. Publishers that wait for further parts get [status.ErrLeaving].
func (m *Models) StopParts() { m.incomplete.close(status.ErrLeaving) }

// Leave leaves the kept versions to the next owner, also those whose readers disconnect from now on.
func (m *Models) Leave() { m.keeping.finish(true) }

// Close frees the server's versions. Call it after all readers have left and after [Models.StopDigests]. It returns the
// errors of the catalog.
func (m *Models) Close() error {
	m.digests.work.Wait()
	m.placer.close()
	m.expiry.close()
	m.renewal.Stop()
	m.Leave()
	err := m.Catalog.Close()
	if m.keeping != nil {
		err = errors.Join(err, m.keeping.Close())
	}
	return err
}

// record is the catalog's callback before a change becomes visible, for one change at a time. A version without a SourceID
// inherits that of the version it replaces, so that a restarted owner does not load the replaced file again.
func (m *Models) record(change catalog.Change) error {
	if change.Record == nil {
		return m.keeping.withdrawn(change.Name)
	}
	r := recordOf(change.Record)
	if change.Replaced != nil && !r.adopted {
		if err := samePartsAs(recordOf(change.Replaced), r.Parts); err != nil {
			return err
		}
	}
	if r.SourceID == "" && change.Replaced != nil {
		r.SourceID = recordOf(change.Replaced).SourceID
	}
	return m.keeping.published(r.stored, r.kept(change))
}

// CheckName returns an error if the catalog does not allow the name.
func CheckName(name string) error {
	if err := catalog.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return nil
}

// List returns all versions with their holders, and the loads.
func (m *Models) List() (out message.Listed) {
	for _, info := range m.Catalog.List() {
		out.Models = append(out.Models, encodeInfo(info))
	}
	out.Loading, out.NotAdopted, out.Incomplete = m.loads.list(), m.NotAdopted(), m.incomplete.list(nil)
	return out
}

// Publication is a state dict to be published as a version.
type Publication struct {
	Name      string             // published name
	StateDict *module.StateDict  // owned by the publication
	Origin    catalog.Origin     // publisher and source
	Digests   bool               // compute digests
	After     uint64             // the version's number is greater
	SourceID  string             // identifies the content of the source, for the next owner
	Retain    *catalog.Retention // replaces the retention of the name; nil leaves it
	Current   *uint64            // number of the version that must be current; nil is no condition
	Part      message.Part       // makes it a part of a version; Of is 0 for a whole version
	Parts     int                // number of parts that it was joined from; 0 for a whole version
	adopted   bool               // an earlier owner has published it
	tensors   []byte             // digests that an earlier owner has computed
}

// Publish publishes a state dict as the next version of a name, or as a part of it. It takes ownership of the state dict even
// if it fails.
func (m *Models) Publish(ctx context.Context, p Publication) (version uint64, err error) {
	return m.publishReceived(ctx, &record{Publication: p, models: m})
}

// publishReceived publishes a record, which it takes, as a version or as a part of one.
func (m *Models) publishReceived(ctx context.Context, r *record) (version uint64, err error) {
	if err := checkPart(r.Part); err != nil {
		return 0, errors.Join(err, r.Close())
	}
	if r.Part.Of > 0 {
		return m.publishPart(ctx, r)
	}
	return m.publishRecord(ctx, r)
}

// publishRecord fills a record and passes it to the catalog. It takes the record, and closes it after an error.
func (m *Models) publishRecord(ctx context.Context, r *record) (version uint64, err error) {
	if err = r.check(); err == nil {
		err = m.changes.enter(ctx)
	}
	if err != nil {
		return 0, errors.Join(err, r.Close())
	}
	defer m.changes.exit()
	status.Reach("publish begun")
	if err = m.keepAfterHandover(); err == nil {
		err = r.fill()
	}
	if err != nil {
		return 0, errors.Join(err, r.Close())
	}
	if version, err = m.Catalog.PublishRecord(r.Name, r, r.Origin, catalog.PublishOptions{After: r.After, Retain: r.Retain, Current: r.Current}); err != nil {
		return 0, err
	}
	status.Reach("publish visible")
	m.digests.start(r.digests, version)
	m.loads.published(r.Name)
	if m.expiry.needed(m.Retain, r.Retain) {
		m.expire()
	}
	m.Log.Info("published", "name", r.Name, "version", version, "tensors", r.StateDict.Len(), "source", r.Origin.Source)
	return version, nil
}

// Withdraw withdraws a name if current is nil or the number of its current version. It returns the error of the
// catalog.
func (m *Models) Withdraw(ctx context.Context, name string, current *uint64) error {
	if err := m.changes.enter(ctx); err != nil {
		return err
	}
	defer m.changes.exit()
	if err := m.keepAfterHandover(); err != nil {
		return err
	}
	err := m.Catalog.WithdrawIf(name, current)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	if err != nil && current != nil {
		return err // only an adopted version can be current
	}
	freed, failed := m.withdrawNotAdopted(name)
	if failed != nil {
		return failed
	}
	if parts := m.incomplete.withdraw(name); err != nil && !freed && !parts {
		return err
	}
	m.Log.Info("withdrawn", "name", name)
	return nil
}

// freed is the catalog's callback after it freed the memory of a version.
func (m *Models) freed(name string, version uint64, err error) {
	if err != nil {
		m.Log.Warn("memory of a version not freed cleanly", "name", name, "version", version, "error", err)
		return
	}
	m.Log.Info("freed", "name", name, "version", version)
}

// Storages returns the storages that are sent to readers: of versions, and of placements. They are borrowed and may be
// closed concurrently.
func (m *Models) Storages() (versions, placements [][]*tensor.Storage) {
	_ = m.Catalog.Versions(func(v catalog.Version) error { // the visitor does not fail
		versions = append(versions, recordOf(v.Record).export.Storages)
		for _, r := range v.Placements {
			placements = append(placements, recordOf(r).export.Storages)
		}
		return nil
	})
	return versions, placements
}

// Held calls visit for each holder of leases with the number and the storages of its leases. The storages are borrowed
// and may be closed concurrently.
func (m *Models) Held(visit func(holder uint64, leases int, storages [][]*tensor.Storage)) {
	for _, h := range m.Catalog.Holdings() {
		var storages [][]*tensor.Storage
		for _, l := range h.Leases {
			storages = append(storages, recordOf(l.Record()).export.Storages)
		}
		visit(h.ID, len(h.Leases), storages)
	}
}
