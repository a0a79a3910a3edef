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
