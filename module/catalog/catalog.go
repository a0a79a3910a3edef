// Package catalog keeps the named, versioned state dicts that an owner has published, and their holders.
//
// Publishing an existing name creates the next version beside the old one. Readers keep the old version, new readers
// get the new one, and watchers receive an event. The old version is freed when its last reader leaves. Publishers,
// readers and watchers never wait for each other.
//
// A reader holds a version by a [Lease]. A lease belongs to a [Holder], which is a session. When the session ends,
// [Catalog.ReleaseHolder] releases all its leases.
//
//	             Publish                 Publish of the next         last lease released, or
//	(nothing) ────────────> current ──────────────────────> old ──── retention used up ────> freed
//	                           │                              │                                 ^
//	                           └──────── Withdraw ────────────┴──> withdrawn ── last lease ─────┘
//
// A version may have placements: copies on other devices ([Placement]). A lease is of a version, or of one of its
// placements.
//
// A version is one [Record]: the state dict and everything that its publisher adds to it, such as exported handles. The
// catalog owns the record from the publication to its end. A failed publication and the end of a version are the same
// call, [Record.Close].
//
// The catalog is a pure data structure: no goroutines, and a clock from its options. It closes a record outside its
// lock, exactly once, when neither a holder nor a name refers to it.
//
// Surprises: a version number is never reused for a name, even after the name was withdrawn, so name and version
// identify the same bytes during the life of the owner. The state dict of a lease is borrowed: it is closed when the
// lease is released, even if the caller still has pointers to it.
package catalog

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
)

// Errors of a catalog, wrapped with the name, version or lease.
var (
	// ErrNotFound means that a name is not published, or a lease does not exist.
	ErrNotFound = errors.New("not found")
	// ErrNoVersion means that a version of a published name never existed, is no longer kept, or was withdrawn.
	ErrNoVersion = errors.New("no such version")
	// ErrNotHolder means that a lease belongs to another holder.
	ErrNotHolder = errors.New("held by another session")
	// ErrName means that a name violates the rules of [CheckName].
	ErrName = errors.New("bad name")
	// ErrNoStateDict means that the state dict to publish is nil.
	ErrNoStateDict = errors.New("no state dict")
	// ErrChanged means that the current version of a name is not the one that a change requires.
	ErrChanged = errors.New("the name has another current version")
	// ErrClosed means that the catalog was closed.
	ErrClosed = errors.New("catalog is closed")
)

// NameError is an error about a name. It unwraps to the cause. Callers that report the name otherwise return Err alone.
type NameError struct {
	// Op is the operation, such as "acquire".
	Op string
	// Name is the name.
	Name string
	// Version is the requested version; 0 means the newest, or none.
	Version uint64
	// Err is the cause.
	Err error
}

// Error returns the operation, the name, the version and the cause.
func (e *NameError) Error() string {
	if e.Version != 0 {
		return fmt.Sprintf("%s version %d of %q: %v", e.Op, e.Version, e.Name, e.Err)
	}
	return fmt.Sprintf("%s %q: %v", e.Op, e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *NameError) Unwrap() error { return e.Err }

// Options limit how long a catalog keeps versions. The zero value is valid.
type Options struct {
	// Retain limits the superseded versions that are kept without holders. A publication may replace it for its name.
	// With the zero value a superseded version is freed when its last holder leaves.
	Retain Retention
	// PendingNames limits the names with pending events of a watcher; 0 means [DefaultPendingNames]. Over the limit the
	// watcher's events are replaced by one of kind [Overflow].
	PendingNames int
	// Now returns the time for infos and leases; nil means [time.Now].
	Now func() time.Time
	// Record, if not nil, is called before a version is published or a name is withdrawn, one call at a time. An error
	// prevents that. Other publications and withdrawals wait for it, readers do not.
	Record func(Change) error
	// Freed, if not nil, is called for each version whose record was closed, with the error of closing it. It is called
	// without the lock on the goroutine that freed the version, so it may call the catalog.
	Freed func(name string, version uint64, err error)
	// Places are the devices on which versions may have placements, each once.
	Places []Place
	// Unplaced, if not nil, is Freed for a placement.
	Unplaced func(name string, version uint64, device driver.Info, err error)
	// Unused, if not nil, is called without the lock after the last lease of a placement ended. The caller then calls
	// [Catalog.Expire].
	Unused func()
}

// Record is what a catalog publishes as a version and owns until the version is freed.
type Record interface {
	// Content returns the state dict. It is constant, and borrowed until the record is closed.
	Content() *module.StateDict
	// Close releases the state dict and everything that the record has for it. It is called once, without the lock of the
	// catalog.
	Close() error
}

// bare is a record that has only a state dict.
type bare struct{ *module.StateDict }

// Content implements [Record].
func (b bare) Content() *module.StateDict { return b.StateDict }

// Change is a publication, or with a nil Record the withdrawal of all versions of a name.
type Change struct {
	// Name and Version name the version. Version is 0 for a withdrawal.
	Name    string
	Version uint64
	// Record is the version, borrowed.
	Record Record
	// Replaced is the record of the current version that a publication supersedes, borrowed; nil for none.
	Replaced Record
	// Origin is the version's origin, with its time of publication.
	Origin Origin
	// Retain is the retention of the name that a publication has set; nil for [Options.Retain].
	Retain *Retention
}

// Origin describes the source of a version, for display only.
type Origin struct {
	// Source is the file or other source of the bytes; it may be empty.
	Source string
	// Publisher is the session that published the version; zero if the owner did.
	Publisher Holder
	// At is the time of publication; zero means now.
	At time.Time
}

// Catalog holds names, their versions and the leases on them. Its methods are safe for concurrent use.
type Catalog struct {
	opts Options

	changes  sync.Mutex // serializes publications and withdrawals; taken before mu
	mu       sync.Mutex
	closed   bool
	entries  map[string]*entry
	empty    int    // entries without a version, which only hold a number
	floor    uint64 // the highest number among removed entries
	leases   map[uint64]*Lease
	holders  map[uint64]map[uint64]*Lease // by holder, by lease
	lastID   uint64                       // of leases
	seq      uint64                       // of events
	watchers watchers
	places   map[driver.UUID]*place

	becameUnused bool // a placement became unused since the last call of Options.Unused
}

// rememberedNames is the number of names without a version that keep their last number. Over the limit all of them are
// removed, and new names start above the highest number among them. So numbers never repeat, and a publisher that
// always uses new names costs no memory.
const rememberedNames = 1024

// New returns an empty catalog.
func New(opts Options) *Catalog {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.PendingNames <= 0 {
		opts.PendingNames = DefaultPendingNames
	}
	c := &Catalog{
		opts:     opts,
		entries:  make(map[string]*entry),
		leases:   make(map[uint64]*Lease),
		holders:  make(map[uint64]map[uint64]*Lease),
		watchers: newWatchers(),
		places:   make(map[driver.UUID]*place),
	}
	for _, on := range opts.Places {
		c.places[on.Device.UUID] = &place{PlaceStats: PlaceStats{Place: on}, all: make(map[*Placement]struct{})}
	}
	return c
}

// MaxAfter is the largest value of [PublishOptions.After]. It leaves room for further versions, and
// JSON represents it exactly.
const MaxAfter = 1 << 53

// Publish makes sd the newest version of name and returns its number. It takes ownership of sd, even on an error: the
// catalog closes it when it is no longer reachable. A state dict must not be published twice; publish an alias. Numbers
// count from 1 and never repeat for a name, even after [Catalog.Withdraw]. New names start higher after more than a
// thousand withdrawn names.
//
// Errors are [ErrName], [ErrNoStateDict] and [ErrClosed].
func (c *Catalog) Publish(name string, sd *module.StateDict, origin Origin) (uint64, error) {
	if sd == nil {
		return 0, &NameError{Op: "publish", Name: name, Err: ErrNoStateDict}
	}
	return c.PublishRecord(name, bare{sd}, origin, PublishOptions{})
}

// PublishOptions are the options of [Catalog.PublishRecord].
type PublishOptions struct {
	// After makes the number of the version greater than After, so that numbers continue where another catalog ended. It
	// is [MaxAfter] at most.
	After uint64
	// Retain replaces the retention of the name until it is withdrawn or published with another one. Nil leaves it.
	Retain *Retention
	// Current, if not nil, is the number of the version that must be current, 0 for a name that is not published.
	// Otherwise the error is [ErrChanged].
	Current *uint64
}

// PublishRecord is Publish for a record, which it takes even on an error, with options.
func (c *Catalog) PublishRecord(name string, r Record, origin Origin, opts PublishOptions) (uint64, error) {
	if err := CheckName(name); err != nil {
		return 0, errors.Join(fmt.Errorf("publish: %w", err), r.Close())
	}
	sd := r.Content()
	v := &version{
		name: name, number: min(opts.After, MaxAfter), record: r, bytes: sd.Bytes(), tensors: sd.Len(), devices: devicesOf(sd), origin: origin,
		leases: make(map[uint64]*Lease),
	}
	freed, wake, err := c.publish(v, opts.Retain, opts.Current)
	if err != nil {
		return 0, errors.Join(err, r.Close())
	}
	wakeAll(wake)
	_ = c.free(freed) // Options.Freed receives the error; the operation has succeeded
	return v.number, nil
}

// publish adds v with the next number that is greater than v.number.
func (c *Catalog) publish(v *version, retain *Retention, current *uint64) (freed []garbage, wake []func(), err error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &NameError{Op: "publish", Name: v.name, Err: ErrClosed}
	}
	e := c.entries[v.name]
	if e == nil {
		e = &entry{last: c.floor}
	}
	if err := e.require("publish", v.name, current); err != nil {
		return nil, nil, err
	}
	v.number = max(e.last, v.number) + 1
	if v.origin.At.IsZero() {
		v.origin.At = c.opts.Now()
	}
	if retain == nil {
		retain = e.retain
	}
	change := Change{Name: v.name, Version: v.number, Record: v.record, Origin: v.origin, Retain: retain}
	if e.current != nil {
		change.Replaced = e.current.record
	}
	if err := c.recordLocked(change); err != nil {
		return nil, nil, &NameError{Op: "publish", Name: v.name, Err: err}
	}
	if c.entries[v.name] == nil {
		c.entries[v.name] = e
	} else if len(e.versions) == 0 {
		c.empty--
	}
	if e.current != nil {
		e.current.superseded = v.origin.At
	}
	e.last, e.retain = v.number, retain
	e.versions = append(e.versions, v)
	e.current = v
	freed = c.settleLocked(v.name, e)
	return freed, c.tellLocked(Published, v.name, v.number), nil
}

// recordLocked calls Options.Record without the lock. Readers may release versions meanwhile, and the catalog may be closed;
// c.changes keeps the numbers and the current versions. An entry without versions may be removed.
func (c *Catalog) recordLocked(change Change) error {
	if c.opts.Record == nil {
		return nil
	}
	c.mu.Unlock()
	err := c.opts.Record(change)
	c.mu.Lock()
	if err == nil && c.closed {
		err = ErrClosed
	}
	return err
}

// Continue makes the numbers of new versions continue those of an earlier catalog: last holds the highest number of
// names, floor that of all others.
func (c *Catalog) Continue(last map[string]uint64, floor uint64) {
	c.changes.Lock()
	defer c.changes.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor = max(c.floor, floor)
	for name, number := range last {
		if c.closed {
			return
		}
		if c.entries[name] == nil {
			c.entries[name] = &entry{last: c.floor}
			c.empty++
		}
		e := c.entries[name]
		e.last = max(e.last, number)
	}
}

// Numbers returns the highest number of each name, and that of all names that are no longer recorded. They are
// arguments of [Catalog.Continue].
func (c *Catalog) Numbers() (last map[string]uint64, floor uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last = make(map[string]uint64, len(c.entries))
	for name, e := range c.entries {
		last[name] = e.last
	}
	return last, c.floor
}

// Versions calls visit for each version, sorted by name and number. The record and the retention are borrowed for the
// duration of the call, under the lock of the catalog.
func (c *Catalog) Versions(visit func(v Version) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range sortedNames(c.entries) {
		e := c.entries[name]
		for _, v := range e.versions {
			out := Version{Change: Change{Name: name, Version: v.number, Record: v.record, Origin: v.origin, Retain: e.retain}, Withdrawn: v.withdrawn}
			for _, p := range v.placements {
				if p.record != nil {
					out.Placements = append(out.Placements, p.record)
				}
			}
			if err := visit(out); err != nil {
				return err
			}
		}
	}
	return nil
}

// Version is a version of a catalog. Retain is the current retention of its name.
type Version struct {
	Change
	// Withdrawn means that the name was withdrawn; readers hold the version.
	Withdrawn bool
	// Placements holds the records of its placements that are made, borrowed like Record.
	Placements []Record
}

// Withdraw removes name from the catalog. Its versions can no longer be acquired, and each is freed when its last
// reader leaves, at once without readers. A name that is not published is [ErrNotFound].
func (c *Catalog) Withdraw(name string) error { return c.WithdrawIf(name, nil) }

// WithdrawIf is Withdraw if current is nil or the number of the current version. Otherwise the error is [ErrChanged].
func (c *Catalog) WithdrawIf(name string, current *uint64) error {
	freed, wake, err := c.withdraw(name, current)
	if err != nil {
		return err
	}
	wakeAll(wake)
	_ = c.free(freed) // Options.Freed receives the error; the operation has succeeded
	return nil
}

// require returns [ErrChanged] unless current is nil or the number of the entry's current version, 0 for none.
func (e *entry) require(op, name string, current *uint64) error {
	number := uint64(0)
	if e.current != nil {
		number = e.current.number
	}
	if current == nil || *current == number {
		return nil
	}
	return &NameError{Op: op, Name: name, Version: *current, Err: ErrChanged}
}

// withdraw marks every version of name.
func (c *Catalog) withdraw(name string, current *uint64) (freed []garbage, wake []func(), err error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &NameError{Op: "withdraw", Name: name, Err: ErrClosed}
	}
	e := c.entries[name]
	if e == nil || e.current == nil {
		return nil, nil, unknown("withdraw", name)
	}
	if err := e.require("withdraw", name, current); err != nil {
		return nil, nil, err
	}
	if err := c.recordLocked(Change{Name: name}); err != nil {
		return nil, nil, &NameError{Op: "withdraw", Name: name, Err: err}
	}
	for _, v := range e.versions {
		v.withdrawn = true
	}
	number := e.current.number
	e.current, e.retain = nil, nil
	freed = c.settleLocked(name, e)
	return freed, c.tellLocked(Withdrawn, name, number), nil
}

// Newest returns the number of the current version of name. Errors are [ErrNotFound] and [ErrClosed].
func (c *Catalog) Newest(name string) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, &NameError{Op: "newest version of", Name: name, Err: ErrClosed}
	}
	e := c.entries[name]
	if e == nil || e.current == nil {
		return 0, unknown("newest version of", name)
	}
	return e.current.number, nil
}

// Close closes all versions, held or not, and ends leases and watchers. It returns the errors of closing the
// records. All methods except Close, [Watcher.Next] and [Watcher.Close] then fail with [ErrClosed] or return nothing. A
// second Close returns nil.
func (c *Catalog) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	var freed []garbage
	for _, name := range sortedNames(c.entries) {
		for _, v := range c.entries[name].versions {
			freed = append(freed, v.garbage()...)
		}
	}
	c.entries, c.leases, c.holders = nil, nil, nil
	c.watchers = newWatchers()
	c.mu.Unlock()
	return c.free(freed)
}

// free closes the records that were removed. The lock must not be held: closing unmaps memory, and the hook may call the
// catalog.
func (c *Catalog) free(list []garbage) error {
	var errs []error
	for _, g := range list {
		if g.record == nil {
			continue
		}
		v, err := g.version, g.record.Close()
		switch p := g.placement; {
		case p == nil && err != nil:
			errs = append(errs, fmt.Errorf("close version %d of %q: %w", v.number, v.name, err))
		case err != nil:
			errs = append(errs, fmt.Errorf("close version %d of %q on %s: %w", v.number, v.name, p.place.Device, err))
		}
		if p := g.placement; p != nil && c.opts.Unplaced != nil {
			c.opts.Unplaced(v.name, v.number, p.place.Device, err)
		} else if p == nil && c.opts.Freed != nil {
			c.opts.Freed(v.name, v.number, err)
		}
	}
	return errors.Join(errs...)
}

// unknown returns the error for a name that is not published.
func unknown(op, name string) error { return &NameError{Op: op, Name: name, Err: ErrNotFound} }
