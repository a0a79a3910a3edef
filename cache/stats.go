package cache

// Stats are the counters of a cache since it was made, and what it holds at the moment.
type Stats struct {
	// Hits counts values that were there.
	Hits uint64
	// Misses counts builds that were started.
	Misses uint64
	// Joins counts callers that waited for a build that another had started.
	Joins uint64
	// Failures counts builds that ended with an error, a panic or a Goexit.
	Failures uint64
	// Evictions counts values that the budget dropped.
	Evictions uint64
	// Expirations counts values that their age dropped.
	Expirations uint64
	// Invalidations counts values and builds that were invalidated or discarded.
	Invalidations uint64

	// Entries is the number of values that can be found.
	Entries int
	// Bytes is the sum of their costs.
	Bytes int64
	// PinnedEntries is how many of them somebody has pinned.
	PinnedEntries int
	// DroppedEntries is the number of values that cannot be found any more and live because somebody has them pinned.
	DroppedEntries int
	// DroppedBytes is the sum of their costs.
	DroppedBytes int64
	// Builds is the number of builds that somebody waits for.
	Builds int
}

// Stats returns the counters as they are at one moment.
func (c *Cache[V]) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries, s.Bytes = c.entries, c.bytes
	s.PinnedEntries = c.entries - c.idle.Len()
	s.Builds = len(c.builds)
	return s
}
