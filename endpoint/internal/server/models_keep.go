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
	"github.com/sharedtensor/sharedtensor/endpoint/internal/keep"
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
	*keep.Keep
	log *slog.Logger

	adopting bool // changes repeat what the journal has; constant while clients are admitted

	mu     sync.Mutex // not held while the journal is written
	by     map[*module.StateDict]*keptVersion
	closed bool // the versions stay recorded when the catalog frees them
	final  bool // closed cannot be reset
}

// keptVersion is a version in the store.
type keptVersion struct {
	id       uint64
	recorded bool // the journal has it; guarded by keeping.mu
	files    int
	version  keep.Version
}

// storing is the memory of a version on its way into the store.
type storing struct {
	files int
	id    uint64
	err   error
	done  chan struct{} // closed when id or err is set
}

// start begins to store the memory of a version that will be published, while the publication is prepared further. It
// returns nil for memory without descriptors, which ends with the owner, and for adopted memory, which is stored already.
// The files are borrowed until done is closed.
func (k *keeping) start(p *Publication, out *transfer.Export) *storing {
	if k == nil {
		return nil
	}
	for _, h := range out.Handles {
		if h.File < 0 {
			k.log.Warn("a version is not kept: its memory has no descriptor and ends with this process", "name", p.Name, "kind", h.Kind)
			return nil
		}
	}
	s := &storing{files: len(out.Files), id: p.adopted, done: make(chan struct{})}
	if p.adopted != 0 {
		close(s.done)
		return s
	}
	go func() {
		defer close(s.done)
		s.id, s.err = k.Put(out.Files)
		status.Reach("publish stored")
	}()
	return s
}

// cancel waits for the store and removes what it has received.
func (k *keeping) cancel(s *storing) {
	if s == nil {
		return
	}
	<-s.done
	if s.err == nil {
		k.Discard(s.id, s.files)
	}
}

// put registers a stored version, which record then writes to the journal.
func (k *keeping) put(p *Publication, out *transfer.Export, s *storing) error {
	if s == nil {
		return nil
	}
	<-s.done
	if errors.Is(s.err, errors.ErrUnsupported) {
		k.log.Warn("a version is not kept: the store cannot have its memory, which ends with this process", "name", p.Name, "error", s.err)
		return nil
	}
	if s.err != nil {
		return s.err
	}
	v := &keptVersion{id: s.id, recorded: p.adopted != 0, files: s.files, version: keptFields(p, out)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by[p.StateDict] = v
	return nil
}

// keptFields returns the fields of a version that are known before its publication.
func keptFields(p *Publication, out *transfer.Export) keep.Version {
	return keep.Version{
		Name: p.Name, Publisher: originOf(p.Origin), SourceID: out.SourceID, Digests: p.Digests, Manifest: out.Manifest, Handles: out.Handles,
	}
}

// record writes a change to the journal, from which the next owner adopts it. source identifies the content of the file
// that the version comes from or replaces.
func (k *keeping) record(change catalog.Change, source string) error {
	if k.adopting {
		return nil
	}
	if change.StateDict == nil {
		err := k.Withdrawn(change.Name)
		status.Reach("withdraw recorded")
		return err
	}
	v := k.of(change.StateDict)
	if v == nil || v.recorded {
		return nil
	}
	version := v.version
	version.Number, version.At, version.SourceID = change.Version, change.Origin.At.UnixNano(), source
	version.Retain = encodeRetention(change.Retain)
	if err := k.Published(v.id, version, v.files); err != nil {
		return err
	}
	k.mu.Lock()
	v.recorded, v.version = true, keep.Version{} // the exports have the manifest
	k.mu.Unlock()
	status.Reach("publish recorded")
	return nil
}

// digested records the computed digests of the tensors of a version. It repeats that if another journal has replaced the
// first one.
func (k *keeping) digested(sd *module.StateDict, tensors []byte) {
	if k == nil {
		return
	}
	var before *keep.Keep
	for {
		k.mu.Lock()
		to, v := k.Keep, k.by[sd]
		done := to == before || v == nil || !v.recorded
		k.mu.Unlock()
		if done {
			return
		}
		if err := to.Digested(v.id, tensors); err != nil {
			k.log.Warn("digests are not kept; the next owner computes them again", "error", err)
		}
		before = to
	}
}

// drop removes a version that the catalog has dropped or that was not published.
func (k *keeping) drop(sd *module.StateDict) {
	if k == nil {
		return
	}
	k.mu.Lock()
	v, in, closed := k.by[sd], k.Keep, k.closed
	delete(k.by, sd)
	recorded := v != nil && v.recorded
	k.mu.Unlock()
	switch {
	case v == nil:
	case !recorded:
		in.Discard(v.id, v.files)
	case !closed:
		in.Freed(v.id)
	}
}

// of returns a version in the store; nil if it is not kept.
func (k *keeping) of(sd *module.StateDict) *keptVersion {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.by[sd]
}

// replace continues with another journal that has the given versions.
func (k *keeping) replace(with *keep.Keep, by map[*module.StateDict]*keptVersion) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for sd, v := range by {
		if k.by[sd] == nil { // freed in the meantime
			with.Freed(v.id)
			delete(by, sd)
		}
	}
	k.Keep, k.by, k.closed = with, by, k.final
}

// finish leaves the versions to the next owner, also those that are freed later. With final this cannot be reverted.
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
func (m *Models) Adopt(store keep.Store) ([]Adopted, error) {
	status.Reach("adopt begun")
	kept, versions, numbers, err := keep.Open(store, m.Log)
	if err != nil {
		return nil, fmt.Errorf("adopt the versions of an earlier owner: %w", err)
	}
	m.keep(kept, store)
	status.Reach("adopt opened")
	return m.adoptAll(versions, numbers, m.setAside), nil
}

// setAside handles a version that cannot be adopted. It frees the version only if no owner could adopt it.
func (m *Models) setAside(v keep.Adopted, why error) {
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
func (m *Models) adoptAll(versions []keep.Adopted, numbers keep.Numbers, failed func(v keep.Adopted, why error)) (list []Adopted) {
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
func (m *Models) adopt(v keep.Adopted) error {
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
	_, err = m.Publish(context.Background(), Publication{
		Name: v.Name, StateDict: sd, Origin: origin, Digests: v.Digests, After: v.Number - 1, SourceID: v.SourceID, Retain: retain,
		adopted: v.ID, tensors: v.Tensors,
	})
	status.Reach("adopt published")
	return err
}

// importKept maps the memory of a version as a client's publication is mapped: it checks manifest, sizes and seals. It
// takes the files. It fails with errManifest if the manifest is damaged.
func (m *Models) importKept(v keep.Adopted) (*module.StateDict, error) {
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
