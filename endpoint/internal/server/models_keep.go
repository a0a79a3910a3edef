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

	"github.com/sharedtensor/sharedtensor/endpoint/internal/keep"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// keeping records the versions of the server for the next owner. A nil keeping records nothing.
type keeping struct {
	*keep.Keep
	log *slog.Logger

	mu     sync.Mutex
	by     map[*module.StateDict]*keptVersion
	closed bool // the versions stay recorded when the catalog frees them
}

// keptVersion is a version in the store.
type keptVersion struct {
	id       uint64
	recorded bool // the journal has it
	files    int
	version  keep.Version
}

// put stores the memory of a version that will be published. It does nothing for memory without descriptors, which
// ends with the owner.
func (k *keeping) put(p *Publication, out *transfer.Export) error {
	if k == nil {
		return nil
	}
	v := &keptVersion{id: p.adopted, recorded: p.adopted != 0, files: len(out.Files), version: keep.Version{
		Name: p.Name, Publisher: originOf(p.Origin), SourceID: p.SourceID, Digests: p.Digests, Manifest: out.Manifest, Handles: out.Handles,
	}}
	for _, h := range out.Handles {
		if h.File < 0 {
			k.log.Warn("a version is not kept: its memory has no descriptor and ends with this process", "name", p.Name, "kind", h.Kind)
			return nil
		}
	}
	if !v.recorded {
		var err error
		if v.id, err = k.Put(out.Files); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by[p.StateDict] = v
	return nil
}

// record is the catalog's callback before a change becomes visible. What it has recorded, the next owner adopts.
func (k *keeping) record(change catalog.Change) error {
	if change.StateDict == nil {
		return k.Withdrawn(change.Name)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.by[change.StateDict]
	if v == nil || v.recorded {
		return nil
	}
	v.version.Number, v.version.At = change.Version, change.Origin.At.UnixNano()
	if err := k.Published(v.id, v.version, v.files); err != nil {
		return err
	}
	v.recorded, v.version = true, keep.Version{}
	return nil
}

// drop forgets a version that the catalog has dropped or that was not published.
func (k *keeping) drop(sd *module.StateDict) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.by[sd]
	delete(k.by, sd)
	switch {
	case v == nil:
	case !v.recorded:
		k.Discard(v.id, v.files)
	case !k.closed:
		k.Freed(v.id)
	}
}

// finish leaves the versions to the next owner. Later changes are not recorded.
func (k *keeping) finish() {
	if k != nil {
		k.mu.Lock()
		k.closed = true
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

// adoptedHolder is the holder of superseded versions until their readers have renewed their leases.
var adoptedHolder = catalog.Holder{ID: math.MaxUint64, PID: int32(os.Getpid()), UID: uint32(os.Getuid()), Label: "readers of the previous owner"}

// renewalTime is the time that the readers of superseded versions have to renew their leases with the next owner.
// Clients that dial again pause up to a second between their attempts.
const renewalTime = 10 * time.Second

// Adopt opens the store, publishes what an earlier owner has left in it, and records changes from now on. Versions keep
// their names and numbers. A version that cannot be mapped is dropped and logged. Call it before clients are admitted.
func (m *Models) Adopt(store keep.Store) ([]Adopted, error) {
	kept, versions, numbers, err := keep.Open(store, m.Log)
	if err != nil {
		return nil, fmt.Errorf("adopt the versions of an earlier owner: %w", err)
	}
	m.keeping = &keeping{Keep: kept, log: m.Log, by: map[*module.StateDict]*keptVersion{}}
	var list []Adopted
	held := false
	for i, v := range versions {
		a := Adopted{Name: v.Name, Version: v.Number, Source: v.Publisher.Source, SourceID: v.SourceID}
		a.Current = i+1 == len(versions) || versions[i+1].Name != v.Name
		if err := m.adopt(v); err != nil {
			m.Log.Error("a version of an earlier owner is lost", "name", v.Name, "version", v.Number, "error", err)
			continue
		}
		if !a.Current {
			_, err := m.Catalog.Acquire(v.Name, v.Number, adoptedHolder)
			held = held || err == nil
		}
		list = append(list, a)
	}
	m.Catalog.Continue(numbers.Last, numbers.Floor)
	if held {
		time.AfterFunc(renewalTime, func() { m.Catalog.ReleaseHolder(adoptedHolder.ID) })
	}
	return list, nil
}

// adopt publishes one version of an earlier owner. It takes the files.
func (m *Models) adopt(v keep.Adopted) error {
	sd, err := m.importKept(v)
	if err != nil {
		m.keeping.Freed(v.ID)
		return err
	}
	origin := catalog.Origin{
		Source: v.Publisher.Source, At: time.Unix(0, v.At),
		Publisher: catalog.Holder{PID: v.Publisher.PID, UID: v.Publisher.UID, Label: v.Publisher.Label},
	}
	number, err := m.Publish(context.Background(), Publication{
		Name: v.Name, StateDict: sd, Origin: origin, Digests: v.Digests, After: v.Number - 1, SourceID: v.SourceID, adopted: v.ID,
	})
	if err == nil && number != v.Number {
		err = fmt.Errorf("its number %d is not above that of an earlier version", v.Number)
	}
	if err != nil {
		m.keeping.Freed(v.ID)
	}
	return err
}

// importKept maps the memory of a version as a client's publication is mapped: it checks manifest, sizes and seals.
func (m *Models) importKept(v keep.Adopted) (*module.StateDict, error) {
	files, err := wire.FilesOf(v.Files)
	for _, f := range v.Files {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, err
	}
	defer files.Close()
	var manifest message.Manifest
	if err := message.Unmarshal(v.Manifest, &manifest); err != nil {
		return nil, err
	}
	return transfer.Importer{Devices: m.Devices}.StateDict(&manifest, v.Handles, files)
}

// originOf describes the origin of a version.
func originOf(o catalog.Origin) message.Origin {
	return message.Origin{PID: o.Publisher.PID, UID: o.Publisher.UID, Label: o.Publisher.Label, Source: o.Source}
}

// CatalogID returns the id of the kept catalog; empty if the versions end with this server.
func (m *Models) CatalogID() string {
	if m.keeping == nil {
		return ""
	}
	return m.keeping.Catalog()
}
