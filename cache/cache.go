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

	"github.com/sharedtensor/sharedtensor/task/panics"
)

// Errors of a cache.
var (
	// ErrClosed is a cache, or a [Ref], that was closed.
	ErrClosed = errors.New("cache is closed")
	// ErrAbandoned is the cause with which the context of a build is cancelled when the last waiter has left, together
	// with why it left.
	ErrAbandoned = errors.New("nobody waits for this any more")
	// ErrPanic is a build that panicked; the error is a [*PanicError].
	ErrPanic = panics.ErrPanic
	// ErrGoexit is a build that ended its goroutine instead of returning.
	ErrGoexit = panics.ErrGoexit
)

// PanicError is a panic in a build. It answers errors.Is for [ErrPanic] and, if the value of the panic is an error, for
// that too.
type PanicError = panics.Error

// Key names a value.
type Key struct {
	// Group is what values are invalidated by together, such as an endpoint or the source of a model.
	Group string
	// ID names the value in its group, such as a digest of arguments.
	ID string
}

// String is the group and the id with a slash between.
func (k Key) String() string { return k.Group + "/" + k.ID }

// DefaultEntries is how many values a cache keeps unless its [Options] say otherwise.
const DefaultEntries = 4096

// Options say what a cache keeps and for how long. The zero value keeps [DefaultEntries] values for ever.
type Options[V any] struct {
	// Entries bounds the number of values; 0 means [DefaultEntries] and a negative number no bound.
	Entries int
	// Bytes bounds the sum of the costs of the values; 0 means no bound. A value that costs more than this drives out
	// no other: it does not count, can be found as long as somebody has it pinned, and is dropped then.
	Bytes int64
	// Cost is the size of a value and its key in bytes; nil means that values cost nothing, and a negative cost counts
	// as 0. It is called once a value, without locks.
	Cost func(Key, V) int64
	// TTL is how long a value is kept after it was built; 0 means for ever. A timer drops it, so a value that nobody
	// asks for goes too.
	TTL time.Duration
	// OnEvict takes each value that was dropped and is pinned by nobody, exactly once, without locks: the place to
	// close it. It also takes a value that was built for nobody. It runs on the goroutine that dropped the value or
	// gave the last reference back; what a new value drives out goes on the goroutine of its build, while its waiters
	// go on.
	OnEvict func(Key, V)
	// Work, if not nil, makes what the waiters of a build share. It is called once a build, with a lock held: it
	// must return at once and not call the cache.
	Work func() Work
}

// Work is one build as its waiters see it, where waiting takes more than time: a waiter may hold something
// that the build, or what the build waits for, needs. Its methods are called without locks.
type Work interface {
	// Context returns the context for the build: one with the values of ctx.
	Context(ctx context.Context) context.Context
	// Join begins the wait of a caller with that context: of the caller that starts the build, before the build begins,
	// and of each that joins. leave is called once, when the wait is over. With an error the caller does not wait:
	// [Cache.Get] returns it.
	Join(ctx context.Context) (leave func(), err error)
}

// Cache keeps values of one type under keys. Its methods are safe for concurrent use.
//
// Values that somebody has pinned count against the budget but are not dropped for it: the budget drops the unpinned
// value that was let go of the longest time ago.
type Cache[V any] struct {
	opts Options[V]

	mu      sync.Mutex
	closed  bool
	groups  map[string]map[string]*entry[V] // what can be found
	entries int                             // in groups
	bytes   int64                           // in groups
	outsize int64                           // of bytes, those of values that cost more than all may
	idle    *list.List                      // of unpinned entries in groups, the one let go last in front
	aging   *list.List                      // of entries in groups, the oldest in front; only with a TTL
	timer   *time.Timer                     // for the oldest
	flights map[Key]*flight[V]              // builds that can be joined
	builds  map[*flight[V]]struct{}         // builds whose result may be wanted, joinable or not
	running int                             // goroutines that build
	quiet   chan struct{}                   // closed when none is running any more in a closed cache
	stats   Stats
}

// entry is a value. It is in the cache as long as it can be found there, and alive as long as it is in or pinned.
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

// Lookup returns a new reference, owned by the caller, to the value of key if it is there. It builds nothing and waits
// for nobody.
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

// findLocked returns the entry of key if it is there and not too old. One that is too old is left to the timer, which
// is due.
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

// addPinsLocked pins e n times.
func (c *Cache[V]) addPinsLocked(e *entry[V], n int) {
	e.pins += n
	if e.idle != nil && e.pins > 0 {
		c.idle.Remove(e.idle)
		e.idle = nil
	}
}

// unpinLocked takes one pin off e and returns what is to be evicted: e itself if it was dropped before, or what the
// budget drops now.
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

// insertLocked makes e findable, in the place of whatever was there, and returns what is to be evicted. The entry must
// be pinned.
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

// dropLocked makes e unfindable and returns it if nobody has it pinned.
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

// outsizeLocked reports whether e costs more than all values may together.
func (c *Cache[V]) outsizeLocked(e *entry[V]) bool { return c.opts.Bytes > 0 && e.cost > c.opts.Bytes }

// Trim drops values that nobody has pinned, those let go of the longest time ago first, until their costs add up to so
// many bytes or none is left, and returns what they cost. They are evicted when it returns. It is for when memory is
// short.
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

// evict hands entries that are out and unpinned to the owner of the cache. The lock must not be held.
func (c *Cache[V]) evict(entries []*entry[V]) {
	if c.opts.OnEvict == nil {
		return
	}
	for _, e := range entries {
		c.opts.OnEvict(e.key, e.value)
	}
}

// Close drops everything. Waiters of a build get [ErrClosed] at once, and the builds' contexts are cancelled;
// Close returns when they have returned, or with the cause of ctx. Values that are pinned live until their last [Ref]
// is closed. Closing again waits again.
func (c *Cache[V]) Close(ctx context.Context) error {
	c.evict(c.shut())
	select {
	case <-c.quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close cache: builds still run: %w", context.Cause(ctx))
	}
}

// shut ends everything that the cache keeps or begins and returns what is to be evicted.
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
