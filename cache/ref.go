package cache

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
