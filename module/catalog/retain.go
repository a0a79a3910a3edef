package catalog

import (
	"fmt"
	"time"
)

// Retention limits the superseded versions of a name that are kept without holders, newest first. Each field that is
// not zero is a limit, and all limits apply. The zero value keeps none. Held versions do not count. Withdrawn versions
// are never retained.
type Retention struct {
	// Versions is the maximum number of versions.
	Versions int
	// Age is the maximum time since a version was superseded.
	Age time.Duration
	// Bytes is the maximum size of the memory of the versions. Storages that several versions share count once for each.
	Bytes int64
}

// Check returns an error if a field is negative.
func (r Retention) Check() error {
	if r.Versions < 0 || r.Age < 0 || r.Bytes < 0 {
		return fmt.Errorf("retention of %d versions, %v and %d bytes: the limits must not be negative", r.Versions, r.Age, r.Bytes)
	}
	return nil
}

// retained decides on the versions of one name, newest first.
type retained struct {
	Retention
	clock    func() time.Time
	versions int
	bytes    int64
	full     bool // no older version is kept
}

// keeps reports whether a superseded version without holders is kept.
func (r *retained) keeps(v *version) bool {
	r.versions++
	r.bytes = addBytes(r.bytes, v.bytes)
	r.full = r.full || r.Retention == Retention{} || r.Versions > 0 && r.versions > r.Versions ||
		r.Bytes > 0 && r.bytes > r.Bytes || r.Age > 0 && r.clock().Sub(v.superseded) >= r.Age
	return !r.full
}

// retention returns the limits of a name.
func (c *Catalog) retention(e *entry) Retention {
	if e.retain != nil {
		return *e.retain
	}
	return c.opts.Retain
}

// Expire frees the superseded versions that have reached the age of their retention, and the placements that were unused
// for the time of their device. It returns the time at which the next one is due; zero if there is none. Call it at that
// time, after publications and for [Options.Unused].
func (c *Catalog) Expire() (next time.Time) {
	freed, next := c.expire()
	_ = c.free(freed) // Options.Freed receives the error
	return next
}

func (c *Catalog) expire() (freed []garbage, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.opts.Now()
	for _, at := range c.places {
		unused, due := at.expireLocked(now)
		freed = append(freed, unused...)
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	for name, e := range c.entries {
		age := c.retention(e).Age
		if age == 0 {
			continue
		}
		freed = append(freed, c.settleLocked(name, e)...)
		for _, v := range e.versions {
			if v == e.current {
				continue
			}
			at := v.superseded.Add(age)
			if !at.After(now) {
				continue // held: the end of its last lease frees it
			}
			if next.IsZero() || at.Before(next) {
				next = at // also of a held version, which may be released before
			}
		}
	}
	return freed, next
}
