package cache

import (
	"context"
	"errors"
	"time"
)

// buildContext is the context of a build. Its deadline is the latest of its waiters, as long as each of them has one.
// At that time the waiters leave, and the last of them to leave ends the build; the context itself does not end.
type buildContext[V any] struct {
	context.Context
	c *Cache[V]
	f *flight[V]
}

// Deadline implements context.Context. It may become later when others come to wait, and earlier when some leave.
func (b *buildContext[V]) Deadline() (time.Time, bool) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	at, limited := b.f.deadlines.latest()
	if limited && (b.f.reported.IsZero() || at.Before(b.f.reported)) {
		b.f.reported = at
	}
	return at, limited
}

// outlives reports whether a waiter has a later deadline than the one that f failed for: f asked for its deadline
// before that waiter came.
func (c *Cache[V]) outlives(f *flight[V], waits waiterDeadline) bool {
	var own *final
	if !errors.Is(f.err, context.DeadlineExceeded) || errors.As(f.err, &own) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	over := !f.reported.IsZero() && !time.Now().Before(f.reported)
	return over && (!waits.limited || waits.until.After(f.reported))
}

// Final marks an error of a load as one that the load would have had whoever waited: a time limit of its own that is
// over, for one. Waiters with a later deadline do not try again then. The error reads and answers as before.
func Final(err error) error { return &final{err} }

type final struct{ error }

func (e *final) Unwrap() error { return e.error }

// waiterDeadline is until when a waiter waits; not limited for a waiter without a deadline. It is read without locks,
// because the context may be that of a build.
type waiterDeadline struct {
	until   time.Time
	limited bool
}

func waiterDeadlineOf(ctx context.Context) (p waiterDeadline) {
	p.until, p.limited = ctx.Deadline()
	return p
}

// deadlines are those of the waiters of a build.
type deadlines struct {
	endless  int // waiters without one
	at       map[time.Time]int
	reported time.Time // the earliest deadline that the build has read; zero if it read none
}

// add notes a waiter.
func (d *deadlines) add(p waiterDeadline) {
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
func (d *deadlines) drop(p waiterDeadline) {
	if !p.limited {
		d.endless--
		return
	}
	if d.at[p.until]--; d.at[p.until] == 0 {
		delete(d.at, p.until)
	}
}

// latest is the latest deadline of the waiters, if each of them has one.
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
