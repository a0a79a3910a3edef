package catalog

import (
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

// Holder is a session: what holds leases, and what loses them all when it ends.
type Holder struct {
	// ID names the session, uniquely in the life of the catalog.
	ID uint64
	// PID is the peer's process id, as the kernel told it.
	PID int32
	// UID is the peer's user id, as the kernel told it.
	UID uint32
	// Label is what the peer calls itself. It is not checked.
	Label string
}

// Lease is a hold on one version. Its fields never change.
type Lease struct {
	// ID names the lease, uniquely in the life of the catalog.
	ID uint64
	// Name is the name that was acquired.
	Name string
	// Version is the version that was acquired.
	Version uint64
	// Holder is the session that holds the lease.
	Holder Holder
	// Since is when the lease was taken.
	Since time.Time

	version *version
}

// StateDict returns the state dict under lease. It is borrowed: valid until the lease is released, never to be closed
// by the caller. A caller that needs it longer takes a clone before.
func (l *Lease) StateDict() *module.StateDict { return l.version.sd }

// Acquire takes a lease on a version of name for h; version 0 means the newest. An old version can be acquired while it
// is kept, because it is held or retained, and the name has not been withdrawn since.
//
// The caller owns the lease and gives it back with [Catalog.Release] or [Catalog.ReleaseHolder]. A session that has
// ended must not acquire: nobody would give the lease back.
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
		return nil, c.unknownLocked("acquire", name)
	}
	if e.current == nil {
		return nil, &NameError{Op: "acquire", Name: name, Version: version, Err: fmt.Errorf("%w: it was withdrawn", ErrNotFound)}
	}
	v, err := e.find(version)
	if err != nil {
		return nil, &NameError{Op: "acquire", Name: name, Version: version, Err: err}
	}
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
	return l, nil
}

// find returns the version with that number, 0 for the current one, if new readers may have it.
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

// Release gives back the lease of that holder. The version is freed if it is old and this was its last lease. Errors
// are [ErrNotFound] for a lease that does not exist or was given back before, [ErrNotHolder] for one that belongs to
// another holder, and [ErrClosed].
func (c *Catalog) Release(leaseID, holder uint64) error {
	freed, err := c.release(leaseID, holder)
	if err != nil {
		return err
	}
	_ = c.free(freed) // Options.Freed is told; what was asked for is done
	return nil
}

func (c *Catalog) release(leaseID, holder uint64) ([]*version, error) {
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

// ReleaseHolder gives back all leases of a holder, because its session has ended, and returns how many there were.
func (c *Catalog) ReleaseHolder(holder uint64) int {
	c.mu.Lock()
	var freed []*version
	of := c.holders[holder]
	n := len(of)
	for _, l := range of {
		freed = append(freed, c.dropLocked(l)...)
	}
	c.mu.Unlock()
	_ = c.free(freed) // Options.Freed is told; what was asked for is done
	return n
}

// dropLocked removes l and returns the versions that this frees.
func (c *Catalog) dropLocked(l *Lease) []*version {
	delete(c.leases, l.ID)
	delete(l.version.leases, l.ID)
	of := c.holders[l.Holder.ID]
	delete(of, l.ID)
	if len(of) == 0 {
		delete(c.holders, l.Holder.ID)
	}
	if len(l.version.leases) > 0 {
		return nil
	}
	return c.settleLocked(l.Name, c.entries[l.Name])
}
