package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Errors of placements.
var (
	// ErrNoPlace means that the owner makes no placements on a device.
	ErrNoPlace = errors.New("no placements on this device")
	// ErrNoRoom means that the placements that are held leave no room for another one in the budget of the device.
	ErrNoRoom = errors.New("the budget of placements is used up")
	// ErrHolderFull means that a holder would hold more bytes of placements than it may.
	ErrHolderFull = errors.New("over the limit of placements of one holder")
	// ErrUnplaced means that the last holder of a placement left before it was made.
	ErrUnplaced = errors.New("no holder waits for the placement")
)

// Place is a device on which versions may have placements.
type Place struct {
	// Device is the device.
	Device driver.Info
	// Budget limits the bytes of the placements on the device.
	Budget int64
	// Keep is how long a placement stays without holders; 0 frees it with its last lease.
	Keep time.Duration
}

// PlaceStats describes the placements on one device: settings, use, and counters.
type PlaceStats struct {
	Place
	// Bytes is the size of the placements, and Placements their number, including those that are being made.
	Bytes      int64
	Placements int
	// Hits counts leases on placements that existed or were being made.
	Hits uint64
	// Copies counts placements that were made, CopiedBytes is their size, and CopyTime the duration of their copies.
	Copies      uint64
	CopiedBytes int64
	CopyTime    time.Duration
	// Evictions counts placements without holders that were freed before their time for lack of room.
	Evictions uint64
	// Failures counts placements that could not be made, without those that no holder waited for.
	Failures uint64
}

// Placement is the copy of a version on another device than that of its publication. It is a record like that of the
// version, with leases and one Close.
//
//	           Place                   Placed                  last lease released
//	(nothing) ───────> being made ───────────────> held ──────────────────────────> unused
//	                     │      │                    ^                                │  │
//	                     │      └── error, or ──┐    └────────────── Place ───────────┘  │ Keep, lack of room,
//	                     │      last lease      v                                        │ or end of the version
//	                     └───────────────────> gone <────────────────────────────────────┘
type Placement struct {
	version *version
	place   *place
	bytes   int64
	stop    func()
	begun   time.Time

	done chan struct{} // closed when record or err is set

	// Guarded by the catalog's lock; record and err are constant after done is closed.
	record Record
	err    error
	leases map[uint64]*Lease
	hits   uint64
	madeAt time.Time
	unused time.Time // when the last lease ended; zero while held or made
	gone   bool      // it is not part of its version any more
}

// PlacementInfo is a snapshot of a placement.
type PlacementInfo struct {
	// Device is its device.
	Device driver.Info
	// Bytes is its size.
	Bytes int64
	// Made is the time at which the copy was complete; zero while it is made.
	Made time.Time
	// Hits counts leases on it, except those that waited for it from the beginning.
	Hits uint64
	// Holders is the number of sessions that hold it.
	Holders int
	// Unused is the time at which its last lease ended; zero while it is held or made.
	Unused time.Time
}

// place holds the placements on one device. It is guarded by the catalog's lock.
type place struct {
	PlaceStats
	all map[*Placement]struct{}
}

// Place takes a second lease of the holder of held: on the placement of that version on a device. It borrows held,
// which the caller releases. If made is true, the placement does not exist yet. The caller then makes it and calls
// [Catalog.Placed] once, in any goroutine; others wait with [Lease.Wait]. Unused placements are freed if the budget of
// the device has no room for bytes, the size of a new placement. most limits the bytes of placements of one holder; 0
// means no limit. stop is called, at most once and under the lock of the catalog, if the last holder leaves before the
// placement is made.
//
// Errors are [ErrNoPlace], [ErrNoRoom], [ErrHolderFull], [ErrNotFound] for a released lease, and [ErrClosed].
func (c *Catalog) Place(held *Lease, device driver.UUID, bytes, most int64, stop func()) (l *Lease, made bool, err error) {
	l, made, freed, err := c.placeLocked(held, device, bytes, most, stop)
	if err != nil {
		return nil, false, &NameError{Op: "place", Name: held.Name, Version: held.Version, Err: err}
	}
	_ = c.free(freed) // Options.Unplaced receives the error
	return l, made, nil
}

func (c *Catalog) placeLocked(held *Lease, device driver.UUID, bytes, most int64, stop func()) (l *Lease, made bool, freed []garbage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, v := c.places[device], held.version
	switch {
	case c.closed:
		return nil, false, nil, ErrClosed
	case c.leases[held.ID] == nil:
		return nil, false, nil, fmt.Errorf("lease %d: %w", held.ID, ErrNotFound)
	case at == nil:
		return nil, false, nil, ErrNoPlace
	}
	p := v.placements[device]
	if p != nil {
		bytes = p.bytes
	}
	if err := c.roomOfHolder(held.Holder.ID, p, bytes, most); err != nil {
		return nil, false, nil, err
	}
	if p == nil {
		if freed, err = at.makeRoom(bytes); err != nil {
			return nil, false, nil, err
		}
		p = &Placement{version: v, place: at, bytes: bytes, stop: stop, begun: c.opts.Now(), done: make(chan struct{}), leases: make(map[uint64]*Lease)}
		if v.placements == nil {
			v.placements = make(map[driver.UUID]*Placement)
		}
		v.placements[device] = p
		at.all[p] = struct{}{}
		at.Bytes += bytes
		made = true
	} else {
		p.hits++
		at.Hits++
	}
	l = c.leaseLocked(v, held.Holder)
	l.placement = p
	p.leases[l.ID], p.unused = l, time.Time{}
	return l, made, freed, nil
}

// roomOfHolder returns an error if a holder would exceed most bytes of placements with another lease on p.
func (c *Catalog) roomOfHolder(holder uint64, p *Placement, bytes, most int64) error {
	if most <= 0 {
		return nil
	}
	held := map[*Placement]struct{}{}
	sum := int64(0)
	for _, l := range c.holders[holder] {
		if l.placement == nil {
			continue
		}
		if l.placement == p {
			return nil
		}
		if _, twice := held[l.placement]; !twice {
			held[l.placement] = struct{}{}
			sum = addBytes(sum, l.placement.bytes)
		}
	}
	if bytes > most-sum {
		return fmt.Errorf("%w: it holds %d bytes of placements and would hold %d more, the limit is %d", ErrHolderFull, sum, bytes, most)
	}
	return nil
}

// makeRoom removes unused placements, earliest unused first, until the budget has room. It removes none if that would
// not suffice. The caller frees the result outside the lock.
func (at *place) makeRoom(bytes int64) (freed []garbage, err error) {
	var unused int64
	for p := range at.all {
		if !p.unused.IsZero() {
			unused += p.bytes
		}
	}
	if held := at.Bytes - unused; bytes > at.Budget-held {
		return nil, fmt.Errorf("%w: on %s %d of %d bytes are held, and it needs %d", ErrNoRoom, at.Device, held, at.Budget, bytes)
	}
	for _, p := range at.byUnused() {
		if bytes <= at.Budget-at.Bytes {
			break
		}
		at.Evictions++
		freed = append(freed, p.remove())
	}
	return freed, nil
}

// byUnused returns the placements without holders, earliest unused first.
func (at *place) byUnused() []*Placement {
	list := slices.DeleteFunc(slices.Collect(maps.Keys(at.all)), func(p *Placement) bool { return p.unused.IsZero() })
	slices.SortFunc(list, func(a, b *Placement) int {
		return cmp.Or(a.unused.Compare(b.unused), a.begun.Compare(b.begun), cmp.Compare(a.version.name, b.version.name), cmp.Compare(a.version.number, b.version.number))
	})
	return list
}

// remove takes the placement out of its version and its device. The caller frees the result outside the lock; it is
// empty if the placement is not made yet.
func (p *Placement) remove() garbage {
	if p.gone {
		return garbage{}
	}
	p.gone = true
	delete(p.version.placements, p.place.Device.UUID)
	delete(p.place.all, p)
	p.place.Bytes -= p.bytes
	return garbage{version: p.version, placement: p, record: p.record}
}

// dropLocked ends a lease of the placement. The placement is unused from its last lease on, or ends with it.
func (p *Placement) dropLocked(c *Catalog, lease uint64) garbage {
	delete(p.leases, lease)
	switch {
	case len(p.leases) > 0 || p.gone:
	case p.record == nil:
		p.stop()
		return p.remove()
	case p.place.Keep == 0:
		return p.remove()
	default:
		p.unused = c.opts.Now()
		c.becameUnused = true
	}
	return garbage{}
}

// Placed ends the making of a placement: with its record, which it takes, or with an error. l is the lease that
// [Catalog.Place] returned with made. The record is closed at once if no holder waits for it. took is how long the copy
// took.
func (c *Catalog) Placed(l *Lease, r Record, took time.Duration, err error) {
	freed := c.placed(l.placement, r, took, err)
	_ = c.free(freed) // Options.Unplaced receives the error
}

func (c *Catalog) placed(p *Placement, r Record, took time.Duration, err error) []garbage {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(p.done)
	switch {
	case p.gone || c.closed:
		p.err = cmp.Or(err, ErrUnplaced)
		return []garbage{{version: p.version, placement: p, record: r}}
	case err != nil:
		p.err = err
		p.place.Failures++
		p.remove()
		return nil
	}
	p.record, p.madeAt = r, c.opts.Now()
	p.place.Copies++
	p.place.CopiedBytes = addBytes(p.place.CopiedBytes, p.bytes)
	p.place.CopyTime += took
	return nil
}

// Reclaim frees unused placements on a device, earliest unused first, until it has freed the given bytes. It returns
// the number of bytes that it freed.
func (c *Catalog) Reclaim(device driver.UUID, bytes int64) (freed int64) {
	list, freed := c.reclaim(device, bytes)
	_ = c.free(list) // Options.Unplaced receives the error
	return freed
}

func (c *Catalog) reclaim(device driver.UUID, bytes int64) (list []garbage, freed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.places[device]
	if at == nil {
		return nil, 0
	}
	for _, p := range at.byUnused() {
		if freed >= bytes {
			break
		}
		freed = addBytes(freed, p.bytes)
		at.Evictions++
		list = append(list, p.remove())
	}
	return list, freed
}

// expireLocked removes the placements that were unused for the time of their device. It returns the time at which the
// next one is due, zero for none.
func (at *place) expireLocked(now time.Time) (freed []garbage, next time.Time) {
	for _, p := range at.byUnused() {
		due := p.unused.Add(at.Keep)
		if due.After(now) {
			return freed, due
		}
		freed = append(freed, p.remove())
	}
	return freed, time.Time{}
}

// PlaceStats describes the placements on each device of [Options.Places], in that order.
func (c *Catalog) PlaceStats() []PlaceStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]PlaceStats, 0, len(c.opts.Places))
	for _, on := range c.opts.Places {
		at := c.places[on.Device.UUID]
		at.Placements = len(at.all)
		list = append(list, at.PlaceStats)
	}
	return list
}

// infos describes the placements of the version, sorted by device.
func (v *version) placementInfos() []PlacementInfo {
	var list []PlacementInfo
	for _, p := range v.placements {
		holders := map[uint64]struct{}{}
		for _, l := range p.leases {
			holders[l.Holder.ID] = struct{}{}
		}
		list = append(list, PlacementInfo{
			Device: p.place.Device, Bytes: p.bytes, Made: p.madeAt, Hits: p.hits, Holders: len(holders), Unused: p.unused,
		})
	}
	slices.SortFunc(list, func(a, b PlacementInfo) int {
		return cmp.Or(cmp.Compare(a.Device.Type, b.Device.Type), cmp.Compare(a.Device.Index, b.Device.Index), slices.Compare(a.Device.UUID[:], b.Device.UUID[:]))
	})
	return list
}
