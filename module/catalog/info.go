package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Info is a snapshot of a name and its versions.
type Info struct {
	// Name is the name.
	Name string
	// Current is the number of the newest version, or 0 if the name is withdrawn and a reader still holds a version.
	Current uint64
	// Versions holds the versions whose memory is not freed, newest first.
	Versions []VersionInfo
}

// VersionInfo is a snapshot of one version.
type VersionInfo struct {
	// Version is the version's number.
	Version uint64
	// Bytes is the size of its memory; tied tensors count once.
	Bytes int64
	// Tensors is the number of names in its state dict.
	Tensors int
	// Devices lists the devices of its memory, each once. The catalog owns the slice; callers must not change it.
	Devices []driver.Info
	// Current reports whether new readers get this version.
	Current bool
	// Withdrawn reports whether new readers are refused.
	Withdrawn bool
	// Origin is its source.
	Origin Origin
	// Holders lists the sessions that hold it, by the age of their oldest lease.
	Holders []HolderInfo
	// Placements describes its copies on other devices, sorted by device.
	Placements []PlacementInfo
	// Record is the version, borrowed. It may be closed concurrently.
	Record Record
}

// HolderInfo describes the leases of one session on one version.
type HolderInfo struct {
	// Holder is the session.
	Holder
	// Leases is the number of its leases on the version.
	Leases int
	// Since is the time of its oldest lease.
	Since time.Time
	// Placements lists the devices of the placements that it holds.
	Placements []driver.UUID
}

// Holding describes all leases of one session.
type Holding struct {
	// Holder is the session, as of its newest lease.
	Holder
	// Leases holds its leases by age. The catalog owns them; callers must not change them.
	Leases []*Lease
	// Bytes is the size of the versions and placements that it holds, each counted once.
	Bytes int64
}

// Stats holds the totals of a catalog.
type Stats struct {
	// Names is the number of names that new readers can acquire.
	Names int
	// Versions is the number of versions whose memory is not freed.
	Versions int
	// Bytes is the size of their memory. Shared storages count once for each version.
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

// List describes all names with a version whose memory is not freed, sorted by name.
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

// Info describes one name. It returns [ErrNotFound] if no version of the name has memory that is not freed.
func (c *Catalog) Info(name string) (Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return Info{}, &NameError{Op: "info of", Name: name, Err: ErrClosed}
	}
	e := c.entries[name]
	if e == nil || len(e.versions) == 0 {
		return Info{}, unknown("info of", name)
	}
	return e.info(name), nil
}

// Holdings lists the leases of each holder, sorted by the holders' ids.
func (c *Catalog) Holdings() []Holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Holding, 0, len(c.holders))
	for _, id := range slices.Sorted(maps.Keys(c.holders)) {
		var h Holding
		held := make(map[any]struct{}) // versions and placements
		for _, l := range byAge(c.holders[id]) {
			h.Holder = l.Holder
			h.Leases = append(h.Leases, l)
			of, bytes := any(l.version), l.version.bytes
			if l.placement != nil {
				of, bytes = l.placement, l.placement.bytes
			}
			if _, twice := held[of]; !twice {
				held[of] = struct{}{}
				h.Bytes = addBytes(h.Bytes, bytes)
			}
		}
		all = append(all, h)
	}
	return all
}

// Stats returns the totals of the catalog.
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

// addBytes adds sizes; on overflow it returns the largest number.
func addBytes(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// Page calls take for each version behind the given one, sorted by name, newest first; an empty name starts at the
// beginning. take receives the name, its current version (0 for none) and one of its versions, and returns false to end
// the page. It runs with the catalog's lock held: it must return at once and not call the catalog.
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

// currentNumber returns the number of the current version; 0 for none.
func (e *entry) currentNumber() uint64 {
	if e.current == nil {
		return 0
	}
	return e.current.number
}

// info describes the version of an entry.
func (v *version) info(e *entry) VersionInfo {
	return VersionInfo{
		Version: v.number, Bytes: v.bytes, Tensors: v.tensors, Devices: v.devices,
		Current: v == e.current, Withdrawn: v.withdrawn, Origin: v.origin, Holders: v.holders(),
		Placements: v.placementInfos(), Record: v.record,
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

// holders groups the version's leases by session.
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
		if p := l.placement; p != nil && !slices.Contains(infos[i].Placements, p.place.Device.UUID) {
			infos[i].Placements = append(infos[i].Placements, p.place.Device.UUID)
		}
	}
	return infos
}

// byAge returns the leases sorted by id, which is their order of acquisition.
func byAge(leases map[uint64]*Lease) []*Lease {
	return slices.SortedFunc(maps.Values(leases), func(a, b *Lease) int { return cmp.Compare(a.ID, b.ID) })
}

// sortedNames returns the names, sorted.
func sortedNames(entries map[string]*entry) []string { return slices.Sorted(maps.Keys(entries)) }

// MaxNameBytes is the maximum length of a name in bytes of UTF-8.
const MaxNameBytes = 255

// CheckName returns nil if name can be published: 1 to [MaxNameBytes] bytes of valid UTF-8 without control characters,
// spaces and slashes allowed. No part between slashes is "." or "..", because programs use names as paths. Names are
// compared byte by byte. Errors are [ErrName].
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %d bytes, more than %d", ErrName, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w %q: not UTF-8", ErrName, name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return fmt.Errorf("%w %q: %q is a part of it, as of a path to another folder", ErrName, name, part)
		}
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w %q: control character %U", ErrName, name, r)
		}
	}
	return nil
}
