package cache

// Each shows visit every value that can be found, in no order. The values are borrowed, and the cache is locked
// meanwhile: visit looks, is quick, and asks the cache for nothing.
func (c *Cache[V]) Each(visit func(Key, V)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, group := range c.groups {
		for _, e := range group {
			visit(e.key, e.value)
		}
	}
}
