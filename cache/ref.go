package cache

// Stats holds the counters of a cache and its current content.
type Stats struct {
	// Hits counts Gets whose value existed.
	Hits uint64
	// Misses counts builds.
	Misses uint64
	// Joins counts callers that waited for a build of another.
	Joins uint64
	// Failures counts builds that failed with an error, a panic or a Goexit.
	Failures uint64
	// Evictions counts values dropped by the budget.
	Evictions uint64
	// Expirations counts values dropped by age.
	Expirations uint64
	// Invalidations counts values and builds that were invalidated or discarded.
	Invalidations uint64

	// Entries is the number of values that can be found.
	Entries int
	// Bytes is the sum of their costs.
	Bytes int64
	// PinnedEntries is the number of pinned values among them.
	PinnedEntries int
	// DroppedEntries is the number of dropped values that are still pinned.
	DroppedEntries int
	// DroppedBytes is the sum of their costs.
	DroppedBytes int64
	// Builds is the number of builds with waiters.
	Builds int
}

// Stats returns a snapshot.
func (c *Cache[V]) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries, s.Bytes = c.entries, c.bytes
	s.PinnedEntries = c.entries - c.idle.Len()
	s.Builds = len(c.builds)
	return s
}

// Ref pins a value: the value is valid until the Ref is closed. Closing one Ref twice does not affect others. Its
// methods are safe for concurrent use.
type Ref[V any] struct {
	c      *Cache[V]
	e      *entry[V]
	closed bool // guarded by the cache's lock
}

// Value returns the value. It is borrowed and valid until Close.
func (r *Ref[V]) Value() V { return r.e.value }

// Key returns the key of the value.
func (r *Ref[V]) Key() Key { return r.e.key }

// Findable reports whether the value has not been dropped.
func (r *Ref[V]) Findable() bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.e.in
}

// Clone returns another reference to the value, owned by the caller. It fails with [ErrClosed] if r is closed.
func (r *Ref[V]) Clone() (*Ref[V], error) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	return r.c.pinLocked(r.e), nil
}

// Discard drops the value from the cache unless it was replaced, so that a value found to be unusable is not returned
// to others. The reference stays valid.
func (r *Ref[V]) Discard() {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if !r.closed && r.e.in {
		r.c.dropLocked(r.e) // nothing to evict: r pins it
		r.c.stats.Invalidations++
	}
}

// Close releases the reference. If the value was dropped and this was the last reference, the value is evicted before
// Close returns. It returns nil; a second Close does nothing.
func (r *Ref[V]) Close() error {
	r.c.mu.Lock()
	if r.closed {
		r.c.mu.Unlock()
		return nil
	}
	r.closed = true
	out := r.c.unpinLocked(r.e)
	r.c.mu.Unlock()
	r.c.evict(out)
	return nil
}
