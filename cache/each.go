package cache

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
