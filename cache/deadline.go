package cache

import (
	"context"
	"time"
)

// buildContext is the context of a build. Its deadline is the latest of all who wait, as long as each of them has one; it is not the
// context that ends at that time, but those who wait: the last one who leaves ends the build.
type buildContext[V any] struct {
	context.Context
	c *Cache[V]
	f *flight[V]
}

// Deadline implements context.Context. It may become later when others come to wait, and earlier when some leave.
func (b *buildContext[V]) Deadline() (time.Time, bool) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.f.deadlines.latest()
}

// patience is how long one waits: until a time, or for ever where there is none. It is asked for without locks, for the context may be
// that of a build.
type patience struct {
	until   time.Time
	limited bool
}

func patienceOf(ctx context.Context) (p patience) {
	p.until, p.limited = ctx.Deadline()
	return p
}

// deadlines are those of the waiters of a build.
type deadlines struct {
	endless int // waiters without one
	at      map[time.Time]int
}

// add notes a waiter.
func (d *deadlines) add(p patience) {
	if !p.limited {
		d.endless++
		return
	}
	if d.at == nil {
		d.at = make(map[time.Time]int)
	}
	d.at[p.until]++
}

// drop forgets one.
func (d *deadlines) drop(p patience) {
	if !p.limited {
		d.endless--
		return
	}
	if d.at[p.until]--; d.at[p.until] == 0 {
		delete(d.at, p.until)
	}
}

// latest is the time at which nobody waits any more, if there is one.
func (d *deadlines) latest() (latest time.Time, limited bool) {
	if d.endless > 0 {
		return time.Time{}, false
	}
	for at := range d.at {
		if at.After(latest) {
			latest = at
		}
	}
	return latest, len(d.at) > 0
}
