package server

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/persist"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// errManifest means that the manifest of a kept version is damaged, so that no owner can adopt it.
var errManifest = errors.New("its manifest is damaged")

// Limits on the description of versions that are not adopted, so that it fits a frame beside other parts. The log has all.
const (
	maxNotAdopted = 1000
	maxReason     = 300 // bytes
)

// notAdopted holds the kept versions that this owner cannot map, by id. The journal and the store keep them for the next
// owner, until their name is withdrawn. The zero value is empty.
type notAdopted struct {
	mu sync.Mutex
	by map[uint64]message.NotAdopted
}

// add records a version and why it is not adopted.
func (n *notAdopted) add(v persist.Adopted, why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.by == nil {
		n.by = map[uint64]message.NotAdopted{}
	}
	out := message.NotAdopted{
		Name: v.Name, Version: v.Number, Reason: message.CutText(why.Error(), maxReason), Withdrawn: v.Withdrawn,
		PublishedAt: v.At, Source: v.Publisher.Source,
	}
	for _, h := range v.Handles {
		out.Bytes += h.Bytes
	}
	n.by[v.ID] = out
}

// list returns up to maxNotAdopted versions, sorted by name and number. If sees is not nil, it selects the names.
func (n *notAdopted) list(sees func(name string) bool) (list []message.NotAdopted) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.by {
		if sees == nil || sees(v.Name) {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b message.NotAdopted) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	return list[:min(len(list), maxNotAdopted)]
}

// of returns the ids of the versions of a name.
func (n *notAdopted) of(name string) (ids []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, v := range n.by {
		if v.Name == name {
			ids = append(ids, id)
		}
	}
	return ids
}

// newest returns the newest version of a name that was not withdrawn, or false.
func (n *notAdopted) newest(name string) (newest message.NotAdopted, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.by {
		if v.Name == name && !v.Withdrawn && v.Version > newest.Version {
			newest, ok = v, true
		}
	}
	return newest, ok
}

// drop removes versions.
func (n *notAdopted) drop(ids []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		delete(n.by, id)
	}
}

// NotAdopted returns the kept versions that this owner cannot map, sorted by name and number.
func (m *Models) NotAdopted() []message.NotAdopted { return m.notAdopted.list(nil) }

// withdrawNotAdopted frees the versions of a name that are not adopted. It reports whether there were any.
func (m *Models) withdrawNotAdopted(name string) (bool, error) {
	ids := m.notAdopted.of(name)
	if len(ids) == 0 {
		return false, nil
	}
	if err := m.keeping.Withdrawn(name); err != nil {
		return false, &catalog.NameError{Op: "withdraw", Name: name, Err: err}
	}
	m.notAdopted.drop(ids)
	for _, id := range ids {
		m.keeping.Freed(id)
	}
	return true, nil
}

// errNotAdopted returns an error if versions are not adopted, because a successor would not receive them.
func (m *Models) errNotAdopted() error {
	list := m.notAdopted.list(nil)
	if len(list) == 0 {
		return nil
	}
	return fmt.Errorf("%d kept versions are not adopted, the first is version %d of %q: restart the owner instead, or withdraw the name",
		len(list), list[0].Version, list[0].Name)
}

// newestAdopted returns an error if a newer version than the current one is not adopted. Readers that request the newest
// version must not get an older one instead. version is the requested one, 0 for the newest.
func (m *Models) newestAdopted(name string, version uint64) error {
	lost, found := m.notAdopted.newest(name)
	if version != 0 || !found {
		return nil
	}
	info, err := m.Catalog.Info(name)
	if err != nil || info.Current == 0 || info.Current > lost.Version {
		return nil
	}
	return status.WithClass(status.ErrNotFound, fmt.Errorf("the newest version %d of %q is kept but not adopted: %s: remove the cause and restart the owner, publish a newer version, or acquire version %d by its number",
		lost.Version, name, lost.Reason, info.Current))
}

// absent adds the state of a load, or of versions that are not adopted, to an error about a name that is not published.
func (m *Models) absent(name string, err error) error {
	err = m.loads.absent(name, err)
	if !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	for _, v := range slices.Backward(m.notAdopted.list(func(other string) bool { return other == name })) {
		return fmt.Errorf("%w; version %d is kept but not adopted: %s", err, v.Version, v.Reason)
	}
	return err
}
