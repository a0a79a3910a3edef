package cache

import (
	"maps"
	"slices"
	"time"
)

// Invalidate drops the value of key and reports whether there was one, built or being built. A running build continues
// for its waiters, and its value is not kept; later Gets start a new build. Pinned values stay valid until their
// references are closed.
func (c *Cache[V]) Invalidate(key Key) bool {
	return c.invalidate(func(k Key) bool { return k == key }, func() []*entry[V] {
		if e := c.groups[key.Group][key.ID]; e != nil {
			return []*entry[V]{e}
		}
		return nil
	}) > 0
}

// InvalidateGroup is [Cache.Invalidate] for all keys of a group. It returns the number of values and builds.
func (c *Cache[V]) InvalidateGroup(group string) int {
	return c.invalidate(func(k Key) bool { return k.Group == group }, func() []*entry[V] {
		return slices.Collect(maps.Values(c.groups[group]))
	})
}

// invalidate drops the entries that findLocked returns. Running builds of matching keys can no longer be joined, and
// their values are not kept. It returns the number of both.
func (c *Cache[V]) invalidate(match func(Key) bool, findLocked func() []*entry[V]) int {
	c.mu.Lock()
	n := 0
	for f := range c.builds {
		if match(f.key) && !f.void {
			f.void = true
			c.unlistLocked(f)
			n++
		}
	}
	var out []*entry[V]
	for _, e := range findLocked() {
		out = append(out, c.dropLocked(e)...)
		n++
	}
	c.stats.Invalidations += uint64(n)
	c.mu.Unlock()
	c.evict(out)
	return n
}

// armLocked sets the timer for the oldest entry if it is not set. The TTL is the same for all entries, so the oldest
// expires first. A timer that fires for a removed entry is set again for the next.
func (c *Cache[V]) armLocked() {
	oldest := c.aging.Front()
	if c.timer != nil || oldest == nil {
		return
	}
	c.timer = time.AfterFunc(time.Until(oldest.Value.(*entry[V]).expires), c.expire)
}

// expire drops expired entries. It runs on the timer's goroutine.
func (c *Cache[V]) expire() {
	c.mu.Lock()
	var out []*entry[V]
	now := time.Now()
	for {
		oldest := c.aging.Front()
		if oldest == nil || now.Before(oldest.Value.(*entry[V]).expires) {
			break
		}
		out = append(out, c.dropLocked(oldest.Value.(*entry[V]))...)
		c.stats.Expirations++
	}
	c.timer = nil
	c.armLocked()
	c.mu.Unlock()
	c.evict(out)
}
