package catalog

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

// Errors of a catalog, wrapped with the name, version or lease that they are about.
var (
	// ErrNotFound is a name that is not published, or a lease that does not exist (any more).
	ErrNotFound = errors.New("not found")
	// ErrNoVersion is a version of a published name that never was, is no longer kept, or was withdrawn.
	ErrNoVersion = errors.New("no such version")
	// ErrNotHolder is a lease that belongs to another holder.
	ErrNotHolder = errors.New("held by another session")
	// ErrName is a name that breaks the rules of [CheckName].
	ErrName = errors.New("bad name")
	// ErrNoStateDict is an attempt to publish nothing.
	ErrNoStateDict = errors.New("no state dict")
	// ErrClosed is a catalog that was closed.
	ErrClosed = errors.New("catalog is closed")
)

// NameError says what was tried with which name. It unwraps to the cause. Whoever names both by other means passes on
// Err alone.
type NameError struct {
	// Op is what was tried, such as "acquire".
	Op string
	// Name is the name.
	Name string
	// Version is the version that was asked for; 0 for the newest, or none.
	Version uint64
	// Err is the cause.
	Err error
}

// Error names the operation, the name and the version.
func (e *NameError) Error() string {
	if e.Version != 0 {
		return fmt.Sprintf("%s version %d of %q: %v", e.Op, e.Version, e.Name, e.Err)
	}
	return fmt.Sprintf("%s %q: %v", e.Op, e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *NameError) Unwrap() error { return e.Err }

// Options say how long a catalog keeps versions. The zero value is useful.
type Options struct {
	// Retain is how many old versions of a name are kept although nobody holds them, the newest first. A held version
	// does not count. 0 frees an old version as soon as nobody holds it. Withdrawn versions are never retained.
	Retain int
	// PendingNames bounds what a watcher that does not look may have waiting, in names; 0 means [DefaultPendingNames].
	// Past it the watcher's events are dropped for one of kind [Overflow].
	PendingNames int
	// Now is the clock for times in infos and leases; nil means [time.Now].
	Now func() time.Time
	// Freed, if not nil, is told of each version whose state dict was closed, with the closed state dict and the error
	// of closing it. It is called outside the lock by whichever goroutine freed the version, so it may call the
	// catalog.
	Freed func(name string, version uint64, sd *module.StateDict, err error)
}

// Origin says where a version came from. It is for people; the catalog only keeps it.
type Origin struct {
	// Source is the file or other place the bytes were read from; it may be empty.
	Source string
	// Publisher is the session that published the version; zero where the owner itself did.
	Publisher Holder
}

// Catalog holds names, their versions and the leases on them. Its methods are safe for concurrent use.
type Catalog struct {
	opts Options

	mu       sync.Mutex
	closed   bool
	entries  map[string]*entry
	empty    int    // entries without a version, which only remember a number
	floor    uint64 // the highest number among the entries that were forgotten
	leases   map[uint64]*Lease
	holders  map[uint64]map[uint64]*Lease // by holder, by lease
	lastID   uint64                       // of leases
	seq      uint64                       // of events
	watchers watchers
}

// rememberedNames is how many names without a version keep their last number. Past it they are all forgotten and
// names that are new start above the highest number among them: numbers still never repeat, and a publisher that makes
// up a new name each time costs no memory.
const rememberedNames = 1024

// New returns an empty catalog.
func New(opts Options) *Catalog {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.PendingNames <= 0 {
		opts.PendingNames = DefaultPendingNames
	}
	return &Catalog{
		opts:     opts,
		entries:  make(map[string]*entry),
		leases:   make(map[uint64]*Lease),
		holders:  make(map[uint64]map[uint64]*Lease),
		watchers: newWatchers(),
	}
}

// Publish makes sd the newest version of name and returns the version's number. It takes sd, also when it fails: the
// catalog closes it when nobody can reach it any more. The same state dict must not be published twice; publish a
// clone. Numbers count from 1 and never repeat for a name, also not after [Catalog.Withdraw]; they start higher for a
// new name once more than a thousand withdrawn names were forgotten.
//
// Errors are [ErrName], [ErrNoStateDict] and [ErrClosed].
func (c *Catalog) Publish(name string, sd *module.StateDict, origin Origin) (uint64, error) {
	if sd == nil {
		return 0, &NameError{Op: "publish", Name: name, Err: ErrNoStateDict}
	}
	if err := CheckName(name); err != nil {
		return 0, errors.Join(fmt.Errorf("publish: %w", err), sd.Close())
	}
	v := &version{
		name: name, sd: sd, bytes: sd.Bytes(), tensors: sd.Len(), devices: devicesOf(sd), origin: origin,
		leases: make(map[uint64]*Lease),
	}
	freed, wake, err := c.publish(v)
	if err != nil {
		return 0, errors.Join(err, sd.Close())
	}
	wakeAll(wake)
	_ = c.free(freed) // Options.Freed is told; what was asked for is done
	return v.number, nil
}

// publish enters v.
func (c *Catalog) publish(v *version) (freed []*version, wake []func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &NameError{Op: "publish", Name: v.name, Err: ErrClosed}
	}
	e := c.entries[v.name]
	if e == nil {
		e = &entry{last: c.floor}
		c.entries[v.name] = e
	} else if len(e.versions) == 0 {
		c.empty--
	}
	e.last++
	v.number, v.at = e.last, c.opts.Now()
	e.versions = append(e.versions, v)
	e.current = v
	freed = c.settleLocked(v.name, e)
	return freed, c.tellLocked(Published, v.name, v.number), nil
}

// Withdraw takes name out of the catalog: nobody can acquire any of its versions any more, and each is freed when
// its last reader leaves, at once if it has none. A name that is not published is [ErrNotFound].
func (c *Catalog) Withdraw(name string) error {
	freed, wake, err := c.withdraw(name)
	if err != nil {
		return err
	}
	wakeAll(wake)
	_ = c.free(freed) // Options.Freed is told; what was asked for is done
	return nil
}

// withdraw marks every version of name.
func (c *Catalog) withdraw(name string) (freed []*version, wake []func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &NameError{Op: "withdraw", Name: name, Err: ErrClosed}
	}
	e := c.entries[name]
	if e == nil || e.current == nil {
		return nil, nil, c.unknownLocked("withdraw", name)
	}
	for _, v := range e.versions {
		v.withdrawn = true
	}
	number := e.current.number
	e.current = nil
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
		return 0, c.unknownLocked("newest version of", name)
	}
	return e.current.number, nil
}

// Close drops everything: all versions are closed, held or not, leases and watchers end. It returns what closing the
// state dicts returned. Everything but Close, [Watcher.Next] and [Watcher.Close] fails with [ErrClosed] afterwards or
// reports nothing. A second Close is nil.
func (c *Catalog) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	var freed []*version
	for _, name := range sortedNames(c.entries) {
		freed = append(freed, c.entries[name].versions...)
	}
	c.entries, c.leases, c.holders = nil, nil, nil
	c.watchers = newWatchers()
	c.mu.Unlock()
	return c.free(freed)
}

// free closes state dicts that were removed. The lock must not be held: closing unmaps memory, and the hook may call
// back.
func (c *Catalog) free(versions []*version) error {
	var errs []error
	for _, v := range versions {
		err := v.sd.Close()
		if err != nil {
			errs = append(errs, fmt.Errorf("close version %d of %q: %w", v.number, v.name, err))
		}
		if c.opts.Freed != nil {
			c.opts.Freed(v.name, v.number, v.sd, err)
		}
	}
	return errors.Join(errs...)
}
