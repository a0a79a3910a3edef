package cache

import (
	"context"
	"errors"
	"time"
)

// buildContext is the context of a build. Its deadline is the latest of its waiters if all of them have one. At that
// time the waiters leave, and the last one to leave cancels the build; the deadline itself does not.
type buildContext[V any] struct {
	context.Context
	c *Cache[V]
	f *flight[V]
}

// Deadline implements context.Context. It may become later when waiters join, and earlier when some leave.
func (b *buildContext[V]) Deadline() (time.Time, bool) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	at, limited := b.f.deadlines.latest()
	if limited && (b.f.reported.IsZero() || at.Before(b.f.reported)) {
		b.f.reported = at
	}
	return at, limited
}

// outlives reports whether a waiter has a later deadline than the one for which f failed, because f read its deadline
// before that waiter joined.
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

// Final marks an error of a load that does not depend on its waiters, such as the load's own time limit. Waiters with a
// later deadline then do not retry. The text and the matches of the error do not change.
func Final(err error) error { return &final{err} }

type final struct{ error }

func (e *final) Unwrap() error { return e.error }

// waiterDeadline is the deadline of a waiter, if limited. It is read without locks because the context may be that of a
// build.
type waiterDeadline struct {
	until   time.Time
	limited bool
}

func waiterDeadlineOf(ctx context.Context) (p waiterDeadline) {
	p.until, p.limited = ctx.Deadline()
	return p
}

// deadlines holds the deadlines of a build's waiters.
type deadlines struct {
	endless  int // number of waiters without a deadline
	at       map[time.Time]int
	reported time.Time // earliest deadline that the build has read; zero if none
}

// add adds a waiter.
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

// drop removes a waiter.
func (d *deadlines) drop(p waiterDeadline) {
	if !p.limited {
		d.endless--
		return
	}
	if d.at[p.until]--; d.at[p.until] == 0 {
		delete(d.at, p.until)
	}
}

// latest returns the latest deadline of the waiters if all of them have one.
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
