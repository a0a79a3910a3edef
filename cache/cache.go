// Package cache keeps the results of expensive calls under keys. Each result is built once for all concurrent callers,
// stays until it is evicted, expires or is invalidated, and is closed when its last user has released it.
//
// A user gets a value as a [Ref], which pins it: the value is valid until the Ref is closed, whether or not the cache
// still has it. A value leaves in two steps. First it is dropped and can no longer be found. When it is no longer
// pinned, [Options.OnEvict] receives it, exactly once.
//
// A build belongs to all its waiters ([Cache.Get]). A waiter that leaves does not affect the others. When the last one
// leaves, the build's context is cancelled. After an invalidation, callers never get results of builds that began
// before it.
//
// Failures are not cached: an error, a panic or a [runtime.Goexit] in a build goes to its waiters, and the next Get
// builds again. A nil value is a valid value.
//
// Surprises: a build runs on a separate goroutine with the values of the context of the caller that started it, but not
// its cancellation or deadline. A build that ignores its cancelled context continues beside the next build of the same
// key; its result is closed and not kept.
package cache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/task/panics"
)

// Errors of a cache.
var (
	// ErrClosed means that the cache or [Ref] was closed.
	ErrClosed = errors.New("cache is closed")
	// ErrAbandoned is the cause of a build's cancelled context after its last waiter has left. It is joined with the
	// waiter's reason.
	ErrAbandoned = errors.New("all callers have left")
	// ErrPanic means that a build panicked; the error is a [*PanicError].
	ErrPanic = panics.ErrPanic
	// ErrGoexit means that a build ended its goroutine instead of returning.
	ErrGoexit = panics.ErrGoexit
)

// PanicError is a panic in a build. It matches errors.Is for [ErrPanic] and, if the value of the panic is an error, for
// that error.
type PanicError = panics.Error

// Key identifies a value.
type Key struct {
	// Group is the unit of invalidation, such as an endpoint or the source of a model.
	Group string
	// ID identifies the value in its group, such as a digest of arguments.
	ID string
}

// String returns the group and the id, separated by a slash.
func (k Key) String() string { return k.Group + "/" + k.ID }

// DefaultEntries is the default of Options.Entries.
const DefaultEntries = 4096

// Options limit what a cache keeps and for how long. The zero value keeps [DefaultEntries] values without a time limit.
type Options[V any] struct {
	// Entries limits the number of values; 0 means [DefaultEntries], a negative number no limit.
	Entries int
	// Bytes limits the sum of the costs of the values; 0 means no limit. A value over the limit evicts no others: it
	// does not count, can be found while it is pinned, and is dropped afterwards.
	Bytes int64
	// Cost returns the size of a value and its key in bytes. Nil means that values cost nothing, and a negative cost
	// counts as 0. It is called once per value, without locks.
	Cost func(Key, V) int64
	// TTL limits the age of a value; 0 means no limit. A timer drops expired values, so unused ones are dropped too.
	TTL time.Duration
	// OnEvict receives each value that was dropped and is no longer pinned, exactly once, without locks; it is the
	// place to close the value. It also receives values built after all waiters left. It runs on the goroutine that
	// dropped the value or closed the last reference. Values evicted by a new value go to the goroutine of its build,
	// after its waiters have been woken.
	OnEvict func(Key, V)
	// Work, if not nil, returns the state that the waiters of a build share. It is called once per build with a lock
	// held: it must return at once and not call the cache.
	Work func() Work
}

// Work tracks the waiters of one build. It is needed if waiting can deadlock because a waiter holds something that the
// build, or what the build waits for, needs. Its methods are called without locks.
type Work interface {
	// Context returns the context for the build, with the values of ctx.
	Context(ctx context.Context) context.Context
	// Join begins the wait of a caller with the given context: of the caller that starts the build, before it begins,
	// and of each that joins. leave is called once, when the wait ends. If Join fails the caller does not wait, and
	// [Cache.Get] returns the error.
	Join(ctx context.Context) (leave func(), err error)
}

// Cache keeps values of one type under keys. Its methods are safe for concurrent use.
//
// Pinned values count against the budget but are not dropped because of it. The budget drops the unpinned value that
// was released first.
type Cache[V any] struct {
	opts Options[V]

	mu      sync.Mutex
	closed  bool
	groups  map[string]map[string]*entry[V] // values that can be found
	entries int                             // number of values in groups
	bytes   int64                           // their cost
	outsize int64                           // cost of values over the limit, included in bytes
	idle    *list.List                      // unpinned entries in groups, most recently released first
	aging   *list.List                      // entries in groups, oldest first; only with a TTL
	timer   *time.Timer                     // for the oldest entry
	flights map[Key]*flight[V]              // builds that can be joined
	builds  map[*flight[V]]struct{}         // builds with waiters, joinable or not
	running int                             // number of goroutines that build
	quiet   chan struct{}                   // closed when a closed cache has no running build
	stats   Stats
}

// entry is a value. It is in the cache while it can be found there, and alive while it is in or pinned.
type entry[V any] struct {
	key     Key
	value   V
	cost    int64
	pins    int
	in      bool
	expires time.Time
	idle    *list.Element // in Cache.idle, if unpinned and in
	aging   *list.Element // in Cache.aging, if in
}

// New returns an empty cache. The caller closes it.
func New[V any](opts Options[V]) *Cache[V] {
	if opts.Entries == 0 {
		opts.Entries = DefaultEntries
	}
	return &Cache[V]{
		opts:    opts,
		groups:  make(map[string]map[string]*entry[V]),
		idle:    list.New(),
		aging:   list.New(),
		flights: make(map[Key]*flight[V]),
		builds:  make(map[*flight[V]]struct{}),
		quiet:   make(chan struct{}),
	}
}

// Lookup returns a new reference, owned by the caller, to the value of key if it exists. It neither builds nor waits.
func (c *Cache[V]) Lookup(key Key) (*Ref[V], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(key)
	if e == nil {
		return nil, false
	}
	c.stats.Hits++
	return c.pinLocked(e), true
}

// findLocked returns the entry of key if it exists and has not expired. Expired entries are left to the timer, which is
// due.
func (c *Cache[V]) findLocked(key Key) *entry[V] {
	e := c.groups[key.Group][key.ID]
	if e == nil || c.opts.TTL > 0 && !time.Now().Before(e.expires) {
		return nil
	}
	return e
}

// pinLocked returns a new reference to e.
func (c *Cache[V]) pinLocked(e *entry[V]) *Ref[V] {
	c.addPinsLocked(e, 1)
	return &Ref[V]{c: c, e: e}
}

// addPinsLocked adds n pins to e.
func (c *Cache[V]) addPinsLocked(e *entry[V], n int) {
	e.pins += n
	if e.idle != nil && e.pins > 0 {
		c.idle.Remove(e.idle)
		e.idle = nil
	}
}

// unpinLocked removes one pin of e and returns the entries to evict: e itself if it was dropped before, or entries that
// the budget drops now.
func (c *Cache[V]) unpinLocked(e *entry[V]) []*entry[V] {
	e.pins--
	switch {
	case e.pins > 0:
		return nil
	case !e.in:
		c.stats.DroppedEntries--
		c.stats.DroppedBytes -= e.cost
		return []*entry[V]{e}
	}
	e.idle = c.idle.PushFront(e)
	if c.outsizeLocked(e) {
		c.stats.Evictions++
		return c.dropLocked(e)
	}
	return c.fitLocked()
}

// insertLocked makes e findable, replacing the previous entry of its key, and returns the entries to evict. The entry
// must be pinned.
func (c *Cache[V]) insertLocked(e *entry[V]) []*entry[V] {
	var out []*entry[V]
	if old := c.groups[e.key.Group][e.key.ID]; old != nil {
		out = c.dropLocked(old)
	}
	group := c.groups[e.key.Group]
	if group == nil {
		group = make(map[string]*entry[V])
		c.groups[e.key.Group] = group
	}
	group[e.key.ID] = e
	e.in = true
	c.entries++
	c.bytes += e.cost
	if c.outsizeLocked(e) {
		c.outsize += e.cost
	}
	c.stats.DroppedEntries--
	c.stats.DroppedBytes -= e.cost
	if c.opts.TTL > 0 {
		e.expires = time.Now().Add(c.opts.TTL)
		e.aging = c.aging.PushBack(e)
		c.armLocked()
	}
	return append(out, c.fitLocked()...)
}

// dropLocked makes e unfindable. It returns e if it is not pinned.
func (c *Cache[V]) dropLocked(e *entry[V]) []*entry[V] {
	group := c.groups[e.key.Group]
	delete(group, e.key.ID)
	if len(group) == 0 {
		delete(c.groups, e.key.Group)
	}
	e.in = false
	c.entries--
	c.bytes -= e.cost
	if c.outsizeLocked(e) {
		c.outsize -= e.cost
	}
	if e.aging != nil {
		c.aging.Remove(e.aging)
		e.aging = nil
	}
	if e.pins > 0 {
		c.stats.DroppedEntries++
		c.stats.DroppedBytes += e.cost
		return nil
	}
	c.idle.Remove(e.idle)
	e.idle = nil
	return []*entry[V]{e}
}

// fitLocked drops unpinned entries until the rest fits the budget, or none is left.
func (c *Cache[V]) fitLocked() []*entry[V] {
	var out []*entry[V]
	for c.idle.Len() > 0 && c.overLocked() {
		out = append(out, c.dropLocked(c.idle.Back().Value.(*entry[V]))...)
		c.stats.Evictions++
	}
	return out
}

// overLocked reports whether the cache holds more than its budget.
func (c *Cache[V]) overLocked() bool {
	return c.opts.Entries > 0 && c.entries > c.opts.Entries || c.opts.Bytes > 0 && c.bytes-c.outsize > c.opts.Bytes
}

// outsizeLocked reports whether e alone exceeds the byte limit.
func (c *Cache[V]) outsizeLocked(e *entry[V]) bool { return c.opts.Bytes > 0 && e.cost > c.opts.Bytes }

// Trim drops unpinned values, those released first, until their costs add up to the given bytes or none is left, and
// returns their cost. They are evicted when it returns. It is called when memory is short.
func (c *Cache[V]) Trim(bytes int64) int64 {
	c.mu.Lock()
	var out []*entry[V]
	var sum int64
	for sum < bytes && c.idle.Len() > 0 {
		e := c.idle.Back().Value.(*entry[V])
		sum += e.cost
		out = append(out, c.dropLocked(e)...)
		c.stats.Evictions++
	}
	c.mu.Unlock()
	c.evict(out)
	return sum
}

// evict passes entries that are out and unpinned to OnEvict. The lock must not be held.
func (c *Cache[V]) evict(entries []*entry[V]) {
	if c.opts.OnEvict == nil {
		return
	}
	for _, e := range entries {
		c.opts.OnEvict(e.key, e.value)
	}
}

// Close drops all values. Waiters of a build get [ErrClosed] at once, and the contexts of builds are cancelled. Close
// returns when all builds have returned, or with the cause of ctx. Pinned values stay valid until their last [Ref] is
// closed. A second Close waits again.
func (c *Cache[V]) Close(ctx context.Context) error {
	c.evict(c.shut())
	select {
	case <-c.quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close cache: builds still run: %w", ended.Cause(ctx))
	}
}

// shut ends all values and builds of the cache and returns the entries to evict.
func (c *Cache[V]) shut() []*entry[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var out []*entry[V]
	for _, e := range c.allLocked() {
		out = append(out, c.dropLocked(e)...)
	}
	for f := range c.builds {
		c.abortLocked(f, ErrClosed)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.running == 0 {
		close(c.quiet)
	}
	return out
}

// allLocked returns all entries that can be found.
func (c *Cache[V]) allLocked() []*entry[V] {
	all := make([]*entry[V], 0, c.entries)
	for _, group := range c.groups {
		all = slices.AppendSeq(all, maps.Values(group))
	}
	return all
}

// Each calls visit for every value that can be found, in no order. The values are borrowed. The cache is locked
// meanwhile: visit must be quick and not call the cache.
func (c *Cache[V]) Each(visit func(Key, V)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, group := range c.groups {
		for _, e := range group {
			visit(e.key, e.value)
		}
	}
}
