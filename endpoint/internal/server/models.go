package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/keep"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ModelsConfig holds the dependencies and settings of a server's models.
type ModelsConfig struct {
	Log     *slog.Logger          // for operators
	Devices transfer.Devices      // devices on which clients may publish
	Names   *transfer.MemoryNames // names of the server's shared memory
	Retain  catalog.Retention     // superseded versions that are kept without readers
	Limits  status.Limits         // of the server
	// RenewalTime is the time that readers of an earlier owner have to renew their leases; 0 means 10 s.
	RenewalTime time.Duration
	// Digest computes the digests of a state dict, like [module.Digests].
	Digest func(ctx context.Context, sd *module.StateDict, workers int) (map[string]module.Digest, error)
}

// Models holds the published versions of a server, their exports, and the usage of clients that publish. Its methods
// are safe for concurrent use.
type Models struct {
	ModelsConfig
	Catalog *catalog.Catalog // names, versions and leases
	exports exports
	sources map[string]string // SourceID of the newest version of a name that had one; used by record only
	quotas  quotas
	loads   loads
	digests digester
	keeping *keeping // nil if the versions end with this server
	expiry  expiry
	renewal *time.Timer // releases the versions of readers that have not renewed their leases
	changes gate

	notAdopted notAdopted // of the store

	store     keep.Store // of keeping
	again     keepAgain  // the versions are not kept since a failed handover
	catalogID string     // of kept or adopted versions; empty if they began with this server and end with it
}

// NewModels returns the models of a server without versions.
func NewModels(c ModelsConfig) *Models {
	if c.RenewalTime <= 0 {
		c.RenewalTime = renewalTime
	}
	m := &Models{ModelsConfig: c, sources: map[string]string{}}
	m.digests.of = m
	m.renewal = time.AfterFunc(math.MaxInt64, func() { m.Catalog.ReleaseHolder(adoptedHolder.ID) })
	m.Catalog = catalog.New(catalog.Options{Retain: c.Retain, Record: m.record, Freed: m.freed})
	return m
}

// StopDigests cancels the computation of digests. Waiters get an error.
func (m *Models) StopDigests() { m.digests.close() }

// Leave leaves the kept versions to the next owner, also those whose readers disconnect from now on.
func (m *Models) Leave() { m.keeping.finish(true) }

// Close frees the server's versions. Call it after all readers have left and after [Models.StopDigests]. It returns the
// errors of the catalog.
func (m *Models) Close() error {
	m.digests.work.Wait()
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
	id := ""
	if out := m.exports.of(change.StateDict); out != nil {
		if out.SourceID == "" {
			out.SourceID = m.sources[change.Name]
		}
		id = out.SourceID
	}
	if m.keeping != nil {
		if err := m.keeping.record(change, id); err != nil {
			return err
		}
	}
	switch {
	case change.StateDict == nil:
		delete(m.sources, change.Name) // the next version replaces nothing
	case id != "":
		m.sources[change.Name] = id
	}
	return nil
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
		model := encodeInfo(info)
		m.digests.describe(model.Name, model.Versions)
		out.Models = append(out.Models, model)
	}
	out.Loading, out.NotAdopted = m.loads.list(), m.NotAdopted()
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
	adopted   uint64             // id of a version that an earlier owner has recorded
	tensors   []byte             // digests that an earlier owner has computed
	charge    *charge            // of a client; nil for publications of the server's own process
}

// Publish publishes a state dict as the next version of a name. It takes ownership of the state dict even if it fails.
// On failure it undoes all steps in reverse order.
func (m *Models) Publish(ctx context.Context, p Publication) (version uint64, err error) {
	sd := p.StateDict
	undo := []func() error{sd.Close}
	defer func() {
		if err == nil {
			return
		}
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
	}()
	if p.charge != nil {
		m.quotas.bind(*p.charge, sd)
		undo = append(undo, func() error { m.quotas.drop(sd); return nil })
	}
	if err = CheckName(p.Name); err != nil {
		return 0, err
	}
	if p.After > catalog.MaxAfter {
		return 0, fmt.Errorf("%w: versions continue from a number of at most 2⁵³, not %d", status.ErrInvalid, p.After)
	}
	if !utf8.ValidString(p.SourceID) {
		return 0, fmt.Errorf("%w: the id %q of the source is not UTF-8", status.ErrInvalid, p.SourceID)
	}
	if err = m.changes.enter(ctx); err != nil {
		return 0, err
	}
	defer m.changes.exit()
	status.Reach("publish begun")
	if err = m.keepAfterHandover(); err != nil {
		return 0, err
	}
	if sd.Closed() { // another reference may hold the memory
		return 0, status.Closed("the state dict")
	}
	if err = m.freeze(p); err != nil {
		return 0, err
	}
	out, err := transfer.NewExport(sd)
	if err != nil {
		return 0, err
	}
	m.nameExport(out)
	undo = append(undo, func() error { m.closeExport(out); return nil })
	p.Origin.Source = status.ShortText(p.Origin.Source, status.MaxSourceBytes)
	stored := m.keeping.start(&p, out)
	undo = append(undo, func() error { m.keeping.cancel(stored); return nil }) // before the files are closed, which the store reads
	if err = m.attachable(p, out); err != nil {
		return 0, err
	}
	if err = m.keeping.put(&p, out, stored); err != nil {
		return 0, err
	}
	out.SourceID = p.SourceID
	m.exports.put(sd, out) // before publication: the first reader may arrive at once
	if p.Digests {
		m.digests.add(sd, p.tensors)
	}
	undo = []func() error{func() error { m.release(sd); return nil }} // the catalog closes sd
	if version, err = m.Catalog.PublishWith(p.Name, sd, p.Origin, catalog.PublishOptions{After: p.After, Retain: p.Retain, Current: p.Current}); err != nil {
		return 0, err
	}
	status.Reach("publish visible")
	m.digests.published(sd, p.Name, version)
	m.loads.published(p.Name)
	if m.expiry.needed(m.Retain, p.Retain) {
		m.expire()
	}
	m.Log.Info("published", "name", p.Name, "version", version, "tensors", sd.Len(), "source", p.Origin.Source)
	return version, nil
}

// freeze makes the memory immutable. Memory of a client is mapped read-only here, so freeze only verifies that the
// client has frozen it.
func (m *Models) freeze(p Publication) error {
	err := status.Unshareable(module.Freeze(p.StateDict))
	if err != nil && p.charge != nil {
		return fmt.Errorf("the publisher must seal its memory against new writers: %w", err)
	}
	return err
}

// attachable encodes the manifest for readers. It fails if the version does not fit in a frame.
func (m *Models) attachable(p Publication, out *transfer.Export) error {
	limits := m.Limits.Wire.WithDefaults()
	frame, files := limits.Frame, limits.Files
	if len(out.Files) > files {
		return fmt.Errorf("%w: %d storages; a frame has at most %d, load the model into fewer", status.ErrTooLarge, len(out.Files), files)
	}
	if err := out.Encode(p.Origin.Source); err != nil {
		return err
	}
	head := message.AppendAcquiredHead(nil, math.MaxUint64, p.Name, math.MaxUint64, out.Sourced)
	if n := int64(len(head) + len(out.Tail)); n > frame {
		return fmt.Errorf("%w: the manifest has %d bytes; a frame has at most %d", status.ErrTooLarge, n, frame)
	}
	return nil
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
		return err // versions that were not adopted are not current
	}
	if freed, failed := m.withdrawNotAdopted(name); failed != nil {
		return failed
	} else if err != nil && !freed {
		return err
	}
	m.Log.Info("withdrawn", "name", name)
	return nil
}

// freed is the catalog's callback after it freed the memory of a version.
func (m *Models) freed(name string, version uint64, sd *module.StateDict, err error) {
	m.release(sd)
	if err != nil {
		m.Log.Warn("memory of a version not freed cleanly", "name", name, "version", version, "error", err)
		return
	}
	m.Log.Info("freed", "name", name, "version", version)
}

// release releases everything that is kept for a state dict that the catalog has dropped.
func (m *Models) release(sd *module.StateDict) {
	m.digests.drop(sd)
	m.keeping.drop(sd)
	if out := m.exports.take(sd); out != nil {
		m.closeExport(out)
	}
	m.quotas.drop(sd)
}

// nameExport sets the memory names of an export that is no longer written.
func (m *Models) nameExport(out *transfer.Export) {
	for i, storage := range out.Storages {
		m.Names.Add(storage)
		out.Handles[i].Name = m.Names.Name(storage)
	}
}

// closeExport removes the memory names of an export and closes it.
func (m *Models) closeExport(out *transfer.Export) {
	for _, storage := range out.Storages {
		m.Names.Remove(storage)
	}
	out.Close()
}
