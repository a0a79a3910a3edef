package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/persist"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// HandOver stops changes of the catalog and returns it for a successor: the id of the catalog, and a journal and memory as
// in a store. id is that of a catalog that is not kept. The caller owns the files, and calls [Models.Left] or
// [Models.Resume].
func (m *Models) HandOver(ctx context.Context, id string) (_ string, files map[string]*os.File, err error) {
	if err := m.errNotAdopted(); err != nil {
		return "", nil, err
	}
	if err := m.changes.close(ctx); err != nil {
		return "", nil, err
	}
	if m.catalogID != "" {
		id = m.catalogID
	}
	if m.keeping == nil {
		files, err = m.snapshot(id)
	} else {
		files, err = m.releaseKept()
	}
	if err != nil {
		return "", nil, errors.Join(err, m.Resume())
	}
	return id, files, nil
}

// Left refuses changes, because a successor serves. The store releases its descriptors; the successor has duplicates.
func (m *Models) Left() {
	m.changes.open(true)
	m.StopParts()
	if s, ok := m.store.(interface{ Forget() }); ok {
		s.Forget()
	}
}

// Resume allows changes again after the successor has ended. If the versions cannot be kept again, the next change tries
// that before it happens.
func (m *Models) Resume() error {
	defer m.changes.open(false)
	if m.keeping == nil {
		return nil
	}
	m.again.needed.Store(true)
	return m.keepAfterHandover()
}

// keepAgain is the state of a journal that a failed handover has left.
type keepAgain struct {
	mu     sync.Mutex
	needed atomic.Bool
}

// keepAfterHandover records the versions again if a failed handover has left them without a journal.
func (m *Models) keepAfterHandover() error {
	if !m.again.needed.Load() {
		return nil
	}
	m.again.mu.Lock()
	defer m.again.mu.Unlock()
	if !m.again.needed.Load() {
		return nil
	}
	if err := m.keepAgain(); err != nil {
		return fmt.Errorf("keep the versions again after a failed handover: %w", err)
	}
	m.again.needed.Store(false)
	return nil
}

// releaseKept returns the files of the kept catalog, and releases it.
func (m *Models) releaseKept() (files map[string]*os.File, err error) {
	k := m.keeping
	k.finish(false)
	files = map[string]*os.File{}
	name, journal, err := k.Release()
	if err != nil {
		return nil, err
	}
	files[name] = journal
	err = m.Catalog.Versions(func(v catalog.Version) error {
		r := recordOf(v.Record)
		id, recorded := k.recordedAs(r.stored)
		if !recorded {
			return nil
		}
		for i, name := range persist.FileNames(id, r.stored.files) {
			own, err := persist.Duplicate(r.export.Files[i])
			if err != nil {
				return err
			}
			files[name] = own
		}
		return nil
	})
	if err != nil {
		persist.CloseFiles(files)
		return nil, err
	}
	return files, nil
}

// snapshot returns a journal and the memory of all versions.
func (m *Models) snapshot(id string) (map[string]*os.File, error) {
	store := new(persist.Files)
	defer func() { _ = store.Close() }() // best effort
	k, err := persist.New(store, id, m.Log, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = k.Close() }() // best effort
	if _, err = m.recordAll(k, func(r *record) (uint64, error) { return k.Put(r.export.Files) }); err == nil {
		err = k.Store()
	}
	if err != nil {
		return nil, err
	}
	_, journal, err := k.Release()
	if err != nil {
		return nil, err
	}
	journal.Close() // the store has another one
	return store.Stored()
}

// recordAll records all versions of the catalog in k, after put has stored their memory. It returns their ids.
func (m *Models) recordAll(k *persist.Versions, put func(r *record) (id uint64, err error)) (map[*record]uint64, error) {
	ids := map[*record]uint64{}
	last, floor := m.Catalog.Numbers()
	withdrawn := ""
	err := m.Catalog.Versions(func(v catalog.Version) error {
		if withdrawn != "" && (v.Name != withdrawn || !v.Withdrawn) {
			if err := k.Withdrawn(withdrawn); err != nil {
				return err
			}
			withdrawn = ""
		}
		r := recordOf(v.Record)
		if len(r.export.Files) != len(r.export.Handles) {
			m.Log.Warn("a version is not handed over: its memory has no descriptor", "name", v.Name, "version", v.Version)
			return nil
		}
		id, err := put(r)
		if errors.Is(err, errors.ErrUnsupported) {
			m.Log.Warn("a version is not kept: the store cannot have its memory", "name", v.Name, "version", v.Version, "error", err)
			return nil
		}
		if err != nil {
			return err
		}
		if err := k.Published(id, r.kept(v.Change), len(r.export.Files)); err != nil {
			return err
		}
		ids[r] = id
		if tensors := r.digests.computed(); tensors != nil {
			if err := k.Digested(id, tensors); err != nil {
				return err
			}
		}
		if v.Withdrawn {
			withdrawn = v.Name
		}
		return nil
	})
	if err == nil && withdrawn != "" {
		err = k.Withdrawn(withdrawn)
	}
	for name, number := range last {
		if err == nil {
			err = k.Number(name, number)
		}
	}
	if err == nil && floor > 0 {
		err = k.Number("", floor)
	}
	return ids, err
}

// keepAgain records all versions in a new journal. A successor that failed may have changed the old one. Memory that is
// still in the store under its id is not stored again.
func (m *Models) keepAgain() error {
	before := m.keeping.Versions
	garbage := map[string]bool{}
	for _, name := range before.Names() {
		garbage[name] = true
	}
	if err := before.Close(); err != nil {
		return err
	}
	names, err := persist.Names(m.store)
	if err != nil {
		return err
	}
	stored := map[string]bool{}
	for _, name := range names {
		garbage[name], stored[name] = true, true
	}
	k, err := persist.New(m.store, m.catalogID, m.Log, slices.Collect(maps.Keys(garbage)))
	if err != nil {
		return err
	}
	ids, err := m.recordAll(k, func(r *record) (uint64, error) {
		id, recorded := m.keeping.recordedAs(r.stored)
		names := persist.FileNames(id, len(r.export.Files))
		if !recorded || slices.ContainsFunc(names, func(name string) bool { return !stored[name] }) {
			return k.Put(r.export.Files)
		}
		for _, name := range names {
			delete(garbage, name)
		}
		return id, nil
	})
	if err == nil {
		err = k.Store()
	}
	if err != nil {
		return errors.Join(err, k.Close())
	}
	m.keeping.replace(k, ids)
	if err := m.store.Remove(slices.Collect(maps.Keys(garbage))...); err != nil {
		m.Log.Warn("memory of an earlier journal stays in the store", "descriptors", len(garbage), "error", err)
	}
	return nil
}

// AdoptHanded is [Models.Adopt] for what a predecessor in another process hands over. It takes the files. own is the store
// of this server; nil for none. It fails if a version cannot be mapped, because the predecessor can continue.
func (m *Models) AdoptHanded(id string, files map[string]*os.File, own persist.Store) ([]Adopted, error) {
	kept, versions, numbers, err := persist.Open(&persist.Handed{Own: own, Files: files}, m.Log)
	if err != nil {
		return nil, fmt.Errorf("adopt the versions of the predecessor: %w", err)
	}
	if m.catalogID = id; own != nil {
		m.keep(kept, own)
	}
	lost := 0
	list := m.adoptAll(versions, numbers, func(v persist.Adopted, why error) {
		m.Log.Error("a version of the predecessor cannot be mapped", "name", v.Name, "version", v.Number, "error", why)
		lost++
	})
	if own == nil {
		err = kept.Close()
	}
	if lost > 0 {
		err = fmt.Errorf("%d versions of the predecessor cannot be mapped; the log has the reasons", lost)
	}
	return list, err
}

// keep records changes in k from now on.
func (m *Models) keep(k *persist.Versions, store persist.Store) {
	m.keeping = &keeping{Versions: k, log: m.Log}
	m.store, m.catalogID = store, k.Catalog()
}
