package catalog

import (
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
)

// entry is a name. Its versions are sorted by number and exclude freed ones.
type entry struct {
	last     uint64 // the highest number used so far
	current  *version
	versions []*version
	retain   *Retention // nil for that of the catalog
}

// version is one published record. All fields except superseded, withdrawn, leases and placements are constant.
type version struct {
	name    string
	number  uint64
	record  Record
	bytes   int64
	tensors int
	devices []driver.Info
	origin  Origin

	superseded time.Time // time of the next publication; zero for the newest version
	withdrawn  bool
	leases     map[uint64]*Lease // also those of placements
	placements map[driver.UUID]*Placement
}

// settleLocked removes the unreachable versions of e and returns them: withdrawn ones without leases, and old ones
// without leases beyond the retention. It is called after every change, and the caller frees the result outside the
// lock.
func (c *Catalog) settleLocked(name string, e *entry) (list []garbage) {
	retained := retained{Retention: c.retention(e), clock: c.opts.Now}
	var freed []*version
	for i := len(e.versions) - 1; i >= 0; i-- {
		v := e.versions[i]
		switch {
		case v == e.current || len(v.leases) > 0:
		case !v.withdrawn && retained.keeps(v):
		default:
			freed = append(freed, v)
		}
	}
	if len(freed) > 0 {
		e.remove(freed)
		c.forgetLocked(name, e)
	}
	for _, v := range freed {
		list = append(list, v.garbage()...)
	}
	return list
}

// garbage is a version or a placement that was removed from the catalog and whose record is to be closed. The zero value
// has no record.
type garbage struct {
	version   *version
	placement *Placement // nil for the version itself
	record    Record
}

// garbage returns the version and its placements, which end with it. Their makers are stopped.
func (v *version) garbage() []garbage {
	var list []garbage
	for _, p := range v.placements {
		if p.record == nil {
			p.stop()
		}
		list = append(list, p.remove())
	}
	return append(list, garbage{version: v, record: v.record})
}

// devicesOf returns the devices of the memory of sd, each once.
func devicesOf(sd *module.StateDict) []driver.Info {
	var list []driver.Info
	for _, s := range sd.Storages() {
		info := s.Memory().Device().Info()
		if !slices.ContainsFunc(list, func(other driver.Info) bool { return other.UUID == info.UUID }) {
			list = append(list, info)
		}
	}
	return list
}

// remove removes the versions in gone, which are in the reverse order of e.versions.
func (e *entry) remove(gone []*version) {
	kept := e.versions[:0]
	for _, v := range e.versions {
		if n := len(gone); n > 0 && gone[n-1] == v {
			gone = gone[:n-1]
			continue
		}
		kept = append(kept, v)
	}
	clear(e.versions[len(kept):])
	e.versions = kept
}

// forgetLocked records that e has no version, and removes all such entries if there are too many.
func (c *Catalog) forgetLocked(name string, e *entry) {
	if len(e.versions) > 0 {
		return
	}
	if c.empty++; c.empty <= rememberedNames {
		return
	}
	for n, e := range c.entries {
		if len(e.versions) == 0 {
			c.floor = max(c.floor, e.last)
			delete(c.entries, n)
		}
	}
	c.empty = 0
}
