package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/persist"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// keeping records the versions of the server for the next owner. A nil keeping records nothing.
type keeping struct {
	*persist.Versions
	log *slog.Logger

	adopting bool // changes repeat what the journal has; constant while clients are admitted

	mu     sync.Mutex // guards Keep and the stored memory of all records; not held while the journal is written
	closed bool       // the versions stay recorded when the catalog frees them
	final  bool       // closed cannot be reset
}

// stored is the memory of a version in the store, or on its way there.
type stored struct {
	files int
	done  chan struct{} // closed when id or err is set
	err   error         // of the store

	// Guarded by keeping.mu after done.
	id       uint64
	recorded bool // the journal has the version
	adopted  bool // recorded by an earlier owner, and not yet published by this server
	dropped  bool // the record is closed
}

// store begins to store the memory of a record, which is prepared further meanwhile. Memory without descriptors is not
// stored because it ends with the owner. The export is borrowed until await or drop.
func (k *keeping) store(r *record) {
	if k == nil || r.stored != nil { // the store has adopted memory
		return
	}
	for _, h := range r.export.Handles {
		if h.File < 0 {
			k.log.Warn("a version is not kept: its memory has no descriptor and ends with this process", "name", r.Name, "kind", h.Kind)
			return
		}
	}
	files := r.export.Files
	s := &stored{files: len(files), done: make(chan struct{})}
	r.stored = s
	go func() {
		defer close(s.done)
		s.id, s.err = k.Put(files)
		status.Reach("publish stored")
	}()
}

// await waits until the store has the memory of a record.
func (k *keeping) await(r *record) error {
	s := r.stored
	if s == nil {
		return nil
	}
	<-s.done
	if errors.Is(s.err, errors.ErrUnsupported) {
		k.log.Warn("a version is not kept: the store cannot have its memory, which ends with this process", "name", r.Name, "error", s.err)
		r.stored = nil
		return nil
	}
	return s.err
}

// adoptStored describes the memory of a version that an earlier owner has recorded; nil if nothing is kept.
func (k *keeping) adoptStored(v persist.Adopted) *stored {
	if k == nil {
		return nil
	}
	s := &stored{files: len(v.Files), done: make(chan struct{}), id: v.ID, recorded: true, adopted: true}
	close(s.done)
	return s
}

// kept describes the record to the next owner.
func (r *record) kept(change catalog.Change) persist.Version {
	return persist.Version{
		Name: r.Name, Number: change.Version, At: change.Origin.At.UnixNano(), Publisher: originOf(change.Origin), SourceID: r.SourceID,
		Digests: r.Digests, Retain: encodeRetention(change.Retain), Parts: r.Parts, Manifest: r.export.Manifest, Handles: r.export.Handles,
	}
}

// published writes a version to the journal, from which the next owner adopts it. s is its memory in the store; nil for none.
func (k *keeping) published(s *stored, v persist.Version) error {
	if k == nil || s == nil {
		return nil
	}
	k.mu.Lock()
	s.adopted = false
	recorded := s.recorded
	k.mu.Unlock()
	if recorded {
		return nil
	}
	if err := k.Published(s.id, v, s.files); err != nil {
		return err
	}
	k.mu.Lock()
	s.recorded = true
	k.mu.Unlock()
	status.Reach("publish recorded")
	return nil
}

// withdrawn writes the withdrawal of a name to the journal.
func (k *keeping) withdrawn(name string) error {
	if k == nil || k.adopting {
		return nil
	}
	err := k.Withdrawn(name)
	status.Reach("withdraw recorded")
	return err
}

// digested records the computed digests of the tensors of a version. It repeats that if another journal has replaced the
// first one.
func (k *keeping) digested(s *stored, tensors []byte) {
	if k == nil || s == nil {
		return
	}
	var before *persist.Versions
	for {
		k.mu.Lock()
		to, id := k.Versions, s.id
		done := to == before || s.dropped || !s.recorded
		k.mu.Unlock()
		if done {
			return
		}
		if err := to.Digested(id, tensors); err != nil {
			k.log.Warn("digests are not kept; the next owner computes them again", "error", err)
		}
		before = to
	}
}

// drop removes the memory of a closed record from the store. It leaves the memory to the next owner after finish, and if
// this owner failed to adopt the version. s may be nil.
func (k *keeping) drop(s *stored) {
	if k == nil || s == nil {
		return
	}
	<-s.done
	k.mu.Lock()
	in, closed := k.Versions, k.closed
	s.dropped = true
	k.mu.Unlock()
	switch {
	case s.err != nil || s.adopted:
	case !s.recorded:
		in.Discard(s.id, s.files)
	case !closed:
		in.Freed(s.id)
	}
}

// recordedAs returns the id of a version in the journal; false if the journal does not have it.
func (k *keeping) recordedAs(s *stored) (id uint64, ok bool) {
	if k == nil || s == nil {
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.id, s.recorded && !s.dropped
}

// replace continues with another journal that has records under the given ids.
func (k *keeping) replace(with *persist.Versions, ids map[*record]uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for r, id := range ids {
		if r.stored == nil || r.stored.dropped { // freed in the meantime
			with.Freed(id)
			continue
		}
		r.stored.id, r.stored.recorded = id, true
	}
	k.Versions, k.closed = with, k.final
}

// finish leaves the versions to the next owner, including versions that are freed later. With final, replace does not
// revert that.
func (k *keeping) finish(final bool) {
	if k != nil {
		k.mu.Lock()
		k.closed, k.final = true, k.final || final
		k.mu.Unlock()
	}
}

// Adopted describes a version that an earlier owner had published.
type Adopted struct {
	Name     string // name of the version
	Version  uint64 // number of the version
	Source   string // source of its publication, for people
	SourceID string // identifies the content of the source
	Current  bool   // new readers get it
}

// adoptedHolder is the holder of all adopted versions until their readers have renewed their leases: a version may be
// superseded before that.
var adoptedHolder = catalog.Holder{ID: math.MaxUint64, PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), Label: "readers of the previous owner"}

// renewalTime is the default of [ModelsConfig.RenewalTime].
const renewalTime = 10 * time.Second

// Adopt opens the store, publishes what an earlier owner has left in it, and records changes from now on. Versions keep
// their names and numbers. A version that cannot be mapped stays in the store and is listed as not adopted. Call it before
// clients are admitted.
func (m *Models) Adopt(store persist.Store) ([]Adopted, error) {
	status.Reach("adopt begun")
	kept, versions, numbers, err := persist.Open(store, m.Log)
	if err != nil {
		return nil, fmt.Errorf("adopt the versions of an earlier owner: %w", err)
	}
	m.keep(kept, store)
	status.Reach("adopt opened")
	return m.adoptAll(versions, numbers, m.setAside), nil
}

// setAside handles a version that cannot be adopted. It frees the version only if no owner could adopt it.
func (m *Models) setAside(v persist.Adopted, why error) {
	if errors.Is(why, errManifest) {
		m.Log.Error("a kept version is freed because its manifest is damaged", "name", v.Name, "version", v.Number, "error", why)
		m.keeping.Freed(v.ID)
		return
	}
	m.Log.Error("a kept version is not adopted; it stays in the store for the next owner, until its name is withdrawn",
		"name", v.Name, "version", v.Number, "error", why)
	m.notAdopted.add(v, why)
}

// adoptAll publishes the versions, which are sorted by name and number. It calls failed for each that cannot be adopted.
func (m *Models) adoptAll(versions []persist.Adopted, numbers persist.Numbers, failed func(v persist.Adopted, why error)) (list []Adopted) {
	if k := m.keeping; k != nil {
		k.adopting = true
		defer func() { k.adopting = false }()
	}
	for i, v := range versions {
		a := Adopted{Name: v.Name, Version: v.Number, Source: v.Publisher.Source, SourceID: v.SourceID}
		last := i+1 == len(versions) || versions[i+1].Name != v.Name
		a.Current = last && !v.Withdrawn
		if err := m.adopt(v); err != nil {
			failed(v, err)
			continue
		}
		_, _ = m.Catalog.Acquire(v.Name, v.Number, adoptedHolder) // the version exists: nothing else changes the catalog
		if v.Withdrawn && (last || !versions[i+1].Withdrawn) {
			_ = m.Catalog.Withdraw(v.Name) // fails only if the name has no version
		}
		if !v.Withdrawn {
			list = append(list, a)
		}
	}
	m.Catalog.Continue(numbers.Last, numbers.Floor)
	status.Reach("adopt done")
	return list
}

// Serve is called when clients are admitted. The readers of versions of an earlier owner then have some time to renew
// their leases.
func (m *Models) Serve() { m.renewal.Reset(m.RenewalTime) }

// adopt publishes one version of an earlier owner. It takes the files.
func (m *Models) adopt(v persist.Adopted) error {
	sd, err := m.importKept(v)
	if err != nil {
		return err
	}
	if newest, err := m.Catalog.Newest(v.Name); err == nil && newest >= v.Number {
		return errors.Join(fmt.Errorf("its number is not above %d, that of an earlier version", newest), sd.Close())
	}
	origin := catalog.Origin{
		Source: v.Publisher.Source, At: time.Unix(0, v.At),
		Publisher: catalog.Holder{PID: v.Publisher.PID, UID: v.Publisher.UID, Label: v.Publisher.Label},
	}
	retain, err := retentionOf(v.Retain)
	if err != nil {
		m.Log.Warn("a kept retention is ignored", "name", v.Name, "error", err)
	}
	_, err = m.publishRecord(context.Background(), &record{models: m, stored: m.keeping.adoptStored(v), Publication: Publication{
		Name: v.Name, StateDict: sd, Origin: origin, Digests: v.Digests, After: v.Number - 1, SourceID: v.SourceID, Retain: retain, tensors: v.Tensors, Parts: v.Parts, adopted: true,
	}})
	status.Reach("adopt published")
	return err
}

// importKept maps the memory of a version as a client's publication is mapped: it checks manifest, sizes and seals. It
// takes the files. It fails with errManifest if the manifest is damaged.
func (m *Models) importKept(v persist.Adopted) (*module.StateDict, error) {
	files, err := wire.FilesOf(v.Files)
	for _, f := range v.Files {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, err
	}
	defer files.Close()
	if v.Err != nil {
		return nil, v.Err
	}
	if err := status.Fault("adopt map"); err != nil {
		return nil, err
	}
	var manifest message.Manifest
	if err := message.Unmarshal(v.Manifest, &manifest); err != nil {
		return nil, fmt.Errorf("%w: %w", errManifest, err)
	}
	prepared, err := codec.PrepareManifest(&manifest)
	if errors.Is(err, tensor.ErrDType) { // a later version of the program has more types
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errManifest, err)
	}
	return transfer.Importer{Devices: m.Devices}.Attach(prepared, v.Handles, files)
}

// originOf describes the origin of a version.
func originOf(o catalog.Origin) message.Origin {
	return message.Origin{PID: o.Publisher.PID, UID: o.Publisher.UID, Label: o.Publisher.Label, Source: o.Source}
}

// CatalogID returns the id of the adopted or kept catalog; empty if the versions began with this server and end with it.
func (m *Models) CatalogID() string {
	return m.catalogID
}
