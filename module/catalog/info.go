package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Info is a name and its versions at one moment. It is a copy that shares nothing with the catalog.
type Info struct {
	// Name is the name.
	Name string
	// Current is the number of the newest version, or 0 if the name is withdrawn and some reader still holds a version.
	Current uint64
	// Versions are those whose memory is not freed, the newest first.
	Versions []VersionInfo
}

// VersionInfo is one version at one moment.
type VersionInfo struct {
	// Version is the version's number.
	Version uint64
	// Bytes is the size of its memory; tied tensors count once.
	Bytes int64
	// Tensors is the number of names in its state dict.
	Tensors int
	// PublishedAt is when it was published.
	PublishedAt time.Time
	// Current tells whether new readers get this version.
	Current bool
	// Withdrawn tells whether new readers are refused.
	Withdrawn bool
	// Origin says where it came from.
	Origin Origin
	// Holders are the sessions that hold it, by the age of their oldest lease.
	Holders []HolderInfo
}

// HolderInfo is what one session holds of one version.
type HolderInfo struct {
	// Holder is the session.
	Holder
	// Leases is how many leases it has on the version.
	Leases int
	// Since is when it took the oldest of them.
	Since time.Time
}

// Holding is everything that one session holds.
type Holding struct {
	// Holder is the session, as it was when it took its newest lease.
	Holder
	// Leases are its leases by age. They are the catalog's own: read them, nothing else.
	Leases []*Lease
	// Bytes is the size of the versions it holds; a version held twice counts once.
	Bytes int64
}

// Stats are the sums over a catalog.
type Stats struct {
	// Names is the number of names that new readers can acquire.
	Names int
	// Versions is the number of versions whose memory is not freed.
	Versions int
	// Bytes is the size of their memory. Versions that share storages count each for itself.
	Bytes int64
	// Leases is the number of leases.
	Leases int
	// Holders is the number of sessions that hold a lease.
	Holders int
	// Watchers is the number of subscriptions.
	Watchers int
	// Seq is the number of the last event.
	Seq uint64
}

// List describes all names that have a version whose memory is not freed, in the order of the names.
func (c *Catalog) List() []Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	infos := make([]Info, 0, len(c.entries))
	for _, name := range sortedNames(c.entries) {
		if e := c.entries[name]; len(e.versions) > 0 {
			infos = append(infos, e.info(name))
		}
	}
	return infos
}

// Info describes one name. A name that has no version whose memory is not freed is [ErrNotFound].
func (c *Catalog) Info(name string) (Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return Info{}, fmt.Errorf("info of %q: %w", name, ErrClosed)
	}
	e := c.entries[name]
	if e == nil || len(e.versions) == 0 {
		return Info{}, fmt.Errorf("info of %q: %w", name, ErrNotFound)
	}
	return e.info(name), nil
}

// Holdings tells who holds what, in the order of the holders' ids.
func (c *Catalog) Holdings() []Holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Holding, 0, len(c.holders))
	for _, id := range slices.Sorted(maps.Keys(c.holders)) {
		var h Holding
		held := make(map[*version]struct{})
		for _, l := range byAge(c.holders[id]) {
			h.Holder = l.Holder
			h.Leases = append(h.Leases, l)
			if _, twice := held[l.version]; !twice {
				held[l.version] = struct{}{}
				h.Bytes += l.version.bytes
			}
		}
		all = append(all, h)
	}
	return all
}

// Stats sums up the catalog.
func (c *Catalog) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Leases: len(c.leases), Holders: len(c.holders), Seq: c.seq}
	for _, e := range c.entries {
		if e.current != nil {
			s.Names++
		}
		for _, v := range e.versions {
			s.Versions++
			s.Bytes += v.bytes
		}
	}
	s.Watchers = c.watchers.count()
	return s
}

// info describes the entry.
func (e *entry) info(name string) Info {
	info := Info{Name: name, Versions: make([]VersionInfo, 0, len(e.versions))}
	if e.current != nil {
		info.Current = e.current.number
	}
	for _, v := range slices.Backward(e.versions) {
		info.Versions = append(info.Versions, VersionInfo{
			Version: v.number, Bytes: v.bytes, Tensors: v.tensors, PublishedAt: v.at,
			Current: v == e.current, Withdrawn: v.withdrawn, Origin: v.origin, Holders: v.holders(),
		})
	}
	return info
}

// holders sums up the version's leases by session.
func (v *version) holders() []HolderInfo {
	var infos []HolderInfo
	at := make(map[uint64]int)
	for _, l := range byAge(v.leases) {
		i, seen := at[l.Holder.ID]
		if !seen {
			i = len(infos)
			at[l.Holder.ID] = i
			infos = append(infos, HolderInfo{Holder: l.Holder, Since: l.Since})
		}
		infos[i].Leases++
	}
	return infos
}

// byAge returns the leases in the order in which they were taken, which is that of their ids.
func byAge(leases map[uint64]*Lease) []*Lease {
	return slices.SortedFunc(maps.Values(leases), func(a, b *Lease) int { return cmp.Compare(a.ID, b.ID) })
}

// sortedNames returns the names in order.
func sortedNames(entries map[string]*entry) []string { return slices.Sorted(maps.Keys(entries)) }
