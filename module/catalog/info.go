package catalog

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Info is a name and its versions at one moment. It is a copy.
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
	// Devices are those that its memory is on, each once. They are the catalog's own: read them, nothing else.
	Devices []driver.Info
	// PublishedAt is when it was published.
	PublishedAt time.Time
	// Current reports whether new readers get this version.
	Current bool
	// Withdrawn reports whether new readers are refused.
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
		return Info{}, &NameError{Op: "info of", Name: name, Err: ErrClosed}
	}
	e := c.entries[name]
	if e == nil || len(e.versions) == 0 {
		return Info{}, c.unknownLocked("info of", name)
	}
	return e.info(name), nil
}

// Holdings lists the leases of each holder, in the order of the holders' ids.
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
				h.Bytes = addBytes(h.Bytes, l.version.bytes)
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
			s.Bytes = addBytes(s.Bytes, v.bytes)
		}
	}
	s.Watchers = c.watchers.count()
	return s
}

// addBytes adds sizes; the largest number where the sum is larger.
func addBytes(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// Page yields versions in the order of their names, the newest of a name first, from behind the given one on: an empty
// name stands for the beginning. take is given a name, its current version (0 for none) and one of its versions, and
// returns false to end the page. It runs under the catalog's lock: it must return at once and not call the catalog.
func (c *Catalog) Page(name string, version uint64, take func(name string, current uint64, v VersionInfo) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := sortedNames(c.entries)
	from, _ := slices.BinarySearch(names, name)
	for _, n := range names[from:] {
		e := c.entries[n]
		for _, v := range slices.Backward(e.versions) {
			if n == name && v.number >= version {
				continue
			}
			if !take(n, e.currentNumber(), v.info(e)) {
				return
			}
		}
	}
}

// currentNumber is the number of the current version; 0 for none.
func (e *entry) currentNumber() uint64 {
	if e.current == nil {
		return 0
	}
	return e.current.number
}

// info describes the version of an entry.
func (v *version) info(e *entry) VersionInfo {
	return VersionInfo{
		Version: v.number, Bytes: v.bytes, Tensors: v.tensors, Devices: v.devices, PublishedAt: v.at,
		Current: v == e.current, Withdrawn: v.withdrawn, Origin: v.origin, Holders: v.holders(),
	}
}

// info describes the entry.
func (e *entry) info(name string) Info {
	info := Info{Name: name, Current: e.currentNumber(), Versions: make([]VersionInfo, 0, len(e.versions))}
	for _, v := range slices.Backward(e.versions) {
		info.Versions = append(info.Versions, v.info(e))
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
