package catalog

import (
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

// Holder is a session that holds leases and releases all of them when it ends.
type Holder struct {
	// ID identifies the session, uniquely in the life of the catalog.
	ID uint64
	// PID is the peer's process id as reported by the kernel.
	PID int32
	// UID is the peer's user id as reported by the kernel.
	UID uint32
	// Label is the peer's display name. It is not verified.
	Label string
}

// Lease is a hold on one version. Its fields never change.
type Lease struct {
	// ID identifies the lease, uniquely in the life of the catalog.
	ID uint64
	// Name is the acquired name.
	Name string
	// Version is the acquired version.
	Version uint64
	// Holder is the session that holds the lease.
	Holder Holder
	// Since is the time of acquisition.
	Since time.Time

	version   *version
	placement *Placement // nil for a lease of the version itself
}

// StateDict returns the state dict under lease. It is borrowed until the lease is released and must not be closed. A
// caller that needs it longer aliases it before.
func (l *Lease) StateDict() *module.StateDict { return l.Record().Content() }

// Record returns the record under lease, borrowed like its state dict: that of the version, or of its placement if that
// is made.
func (l *Lease) Record() Record {
	if p := l.placement; p != nil {
		select {
		case <-p.done:
			if p.err == nil {
				return p.record
			}
		default:
		}
	}
	return l.version.record
}

// Origin returns the record of the version, also under a lease of a placement. It is borrowed like Record.
func (l *Lease) Origin() Record { return l.version.record }

// Made returns a channel that is closed when the placement under lease is made or has failed; nil for a lease of a
// version.
func (l *Lease) Made() <-chan struct{} {
	if l.placement == nil {
		return nil
	}
	return l.placement.done
}

// Err returns why the placement under lease could not be made. Call it after Made is closed.
func (l *Lease) Err() error { return l.placement.err }

// Acquire takes a lease on a version of name for h; version 0 means the newest. An old version can be acquired while it
// is held or retained, unless the name was withdrawn since.
//
// The caller owns the lease and releases it with [Catalog.Release] or [Catalog.ReleaseHolder]. An ended session must
// not acquire, because its lease would never be released.
//
// Errors are [ErrNotFound], [ErrNoVersion] and [ErrClosed].
func (c *Catalog) Acquire(name string, version uint64, h Holder) (*Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &NameError{Op: "acquire", Name: name, Version: version, Err: ErrClosed}
	}
	e := c.entries[name]
	if e == nil {
		return nil, unknown("acquire", name)
	}
	if e.current == nil {
		return nil, &NameError{Op: "acquire", Name: name, Version: version, Err: fmt.Errorf("%w: it was withdrawn", ErrNotFound)}
	}
	v, err := e.find(version)
	if err != nil {
		return nil, &NameError{Op: "acquire", Name: name, Version: version, Err: err}
	}
	return c.leaseLocked(v, h), nil
}

// Renew acquires a version for h that the holder with the id from holds, even if it was withdrawn. An owner uses it for
// readers that held the version at an earlier owner. Errors are those of Acquire.
func (c *Catalog) Renew(name string, version, from uint64, h Holder) (*Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.holders[from] {
		if l.Name == name && l.Version == version {
			return c.leaseLocked(l.version, h), nil
		}
	}
	return nil, &NameError{Op: "acquire", Name: name, Version: version, Err: ErrNotFound}
}

// leaseLocked takes a lease on a version.
func (c *Catalog) leaseLocked(v *version, h Holder) *Lease {
	c.lastID++
	l := &Lease{ID: c.lastID, Name: v.name, Version: v.number, Holder: h, Since: c.opts.Now(), version: v}
	v.leases[l.ID] = l
	c.leases[l.ID] = l
	of := c.holders[h.ID]
	if of == nil {
		of = make(map[uint64]*Lease)
		c.holders[h.ID] = of
	}
	of[l.ID] = l
	return l
}

// find returns the version with that number, 0 for the current one, if it can be acquired.
func (e *entry) find(number uint64) (*version, error) {
	if number == 0 || number == e.current.number {
		return e.current, nil
	}
	for _, v := range e.versions {
		switch {
		case v.number == number && v.withdrawn:
			return nil, fmt.Errorf("%w: it was withdrawn; its holders keep it", ErrNoVersion)
		case v.number == number:
			return v, nil
		}
	}
	if number > e.last {
		return nil, fmt.Errorf("%w: the newest is %d", ErrNoVersion, e.last)
	}
	return nil, fmt.Errorf("%w: it is no longer kept", ErrNoVersion)
}

// Release releases the lease of that holder. An old version is freed with its last lease. Errors are [ErrNotFound] for
// a lease that does not exist or was released before, [ErrNotHolder] for a lease of another holder, and [ErrClosed].
func (c *Catalog) Release(leaseID, holder uint64) error {
	freed, err := c.release(leaseID, holder)
	if err != nil {
		return err
	}
	_ = c.free(freed) // Options.Freed receives the error; the operation has succeeded
	c.reportUnused()
	return nil
}

// reportUnused calls Options.Unused if a placement became unused.
func (c *Catalog) reportUnused() {
	c.mu.Lock()
	report := c.becameUnused && c.opts.Unused != nil
	c.becameUnused = false
	c.mu.Unlock()
	if report {
		c.opts.Unused()
	}
}

func (c *Catalog) release(leaseID, holder uint64) ([]garbage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("release lease %d: %w", leaseID, ErrClosed)
	}
	l := c.leases[leaseID]
	if l == nil {
		return nil, fmt.Errorf("release lease %d: %w", leaseID, ErrNotFound)
	}
	if l.Holder.ID != holder {
		return nil, fmt.Errorf("release lease %d: %w", leaseID, ErrNotHolder)
	}
	return c.dropLocked(l), nil
}

// ReleaseHolder releases all leases of a holder whose session has ended, and returns their number.
func (c *Catalog) ReleaseHolder(holder uint64) int {
	c.mu.Lock()
	var freed []garbage
	of := c.holders[holder]
	n := len(of)
	for _, l := range of {
		freed = append(freed, c.dropLocked(l)...)
	}
	c.mu.Unlock()
	_ = c.free(freed) // Options.Freed receives the error; the operation has succeeded
	c.reportUnused()
	return n
}

// dropLocked removes l and returns what this frees.
func (c *Catalog) dropLocked(l *Lease) (freed []garbage) {
	delete(c.leases, l.ID)
	delete(l.version.leases, l.ID)
	of := c.holders[l.Holder.ID]
	delete(of, l.ID)
	if len(of) == 0 {
		delete(c.holders, l.Holder.ID)
	}
	if l.placement != nil {
		freed = append(freed, l.placement.dropLocked(c, l.ID))
	}
	if len(l.version.leases) > 0 {
		return freed
	}
	return append(freed, c.settleLocked(l.Name, c.entries[l.Name])...)
}
