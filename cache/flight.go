package cache

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/task/panics"
)

// flight is one build and its waiters. Its fields are guarded by the cache's lock until done is closed, and constant
// afterwards.
type flight[V any] struct {
	key     Key
	work    Work // nil if Options.Work is nil
	waiters int
	void    bool // the result must not be kept
	ended   bool // the result is no longer wanted
	cancel  context.CancelCauseFunc
	done    chan struct{}
	entry   *entry[V]
	err     error
}

// Get returns a reference, owned by the caller, to the value of key. If there is none, load builds it. Concurrent
// callers of the key wait for the same build and get separate references. The cache takes ownership of the value.
//
// A caller whose ctx ends while it waits leaves with the cause of ctx. load gets a context that is cancelled, with
// cause [ErrAbandoned] and the cause of that waiter, when the last waiter has left. It has no deadline, because waiters
// with later deadlines may join. load must not request its own key, because it would wait for itself unless
// [Options.Work] detects it.
//
// It returns the errors of load, [*PanicError], [ErrGoexit] and [ErrClosed]; they are not cached. A load that returns an
// error keeps ownership of its value.
func (c *Cache[V]) Get(ctx context.Context, key Key, load func(context.Context) (V, error)) (*Ref[V], error) {
	return c.get(ctx, key, load, true)
}

// GetAlone is [Cache.Get] without sharing: if there is no value, load builds it for this caller, beside other builds of
// the same key. The value that was built last is kept.
func (c *Cache[V]) GetAlone(ctx context.Context, key Key, load func(context.Context) (V, error)) (*Ref[V], error) {
	return c.get(ctx, key, load, false)
}

// get looks for a value and for a build to join in the critical section in which it starts a build. A build stores its
// value in the critical section in which it stops being joinable. So there is no moment at which a built value cannot
// be found.
func (c *Cache[V]) get(ctx context.Context, key Key, load func(context.Context) (V, error), share bool) (*Ref[V], error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if e := c.findLocked(key); e != nil {
		c.stats.Hits++
		defer c.mu.Unlock()
		return c.pinLocked(e), nil
	}
	if ctx.Err() != nil {
		c.mu.Unlock()
		return nil, ended.Cause(ctx)
	}
	f := c.flights[key]
	if share && f != nil {
		c.stats.Joins++
		f.waiters++
		c.mu.Unlock()
		return c.await(ctx, f, nil)
	}
	c.stats.Misses++
	f, inner := c.newFlightLocked(ctx, key, share)
	c.mu.Unlock()
	return c.await(ctx, f, func() { c.build(inner, f, load) })
}

// newFlightLocked records a build for one waiter, which starts it. It returns the context for the build.
func (c *Cache[V]) newFlightLocked(ctx context.Context, key Key, share bool) (*flight[V], context.Context) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight[V]{key: key, waiters: 1, cancel: cancel, done: make(chan struct{})}
	if c.opts.Work != nil {
		f.work = c.opts.Work()
	}
	if share {
		c.flights[key] = f
	}
	c.builds[f] = struct{}{}
	c.running++
	return f, inner
}

// await starts the build of f if build is not nil, and returns when f is done or ctx ends, whichever is first under the
// lock.
func (c *Cache[V]) await(ctx context.Context, f *flight[V], build func()) (*Ref[V], error) {
	leave, err := f.join(ctx)
	if build != nil {
		go build()
	}
	if err != nil {
		if !c.leave(f, fmt.Errorf("%w: %w", ErrAbandoned, err)) && f.err == nil {
			_ = (&Ref[V]{c: c, e: f.entry}).Close()
		}
		return nil, err
	}
	defer leave()
	select {
	case <-f.done:
	case <-ctx.Done():
		if c.leave(f, abandoned(ctx)) {
			return nil, ended.Cause(ctx)
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	return &Ref[V]{c: c, e: f.entry}, nil
}

// abandoned returns the cause for cancelling a build whose last waiter left because ctx ended.
func abandoned(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrAbandoned, ended.Cause(ctx))
}

// join registers a waiter with the given context at the work of f, if any.
func (f *flight[V]) join(ctx context.Context) (leave func(), err error) {
	if f.work == nil {
		return func() {}, nil
	}
	return f.work.Join(ctx)
}

// leave removes one waiter of f. It returns false if f is done, because the waiter's pin is then available. The last
// waiter ends the build with the reason why.
func (c *Cache[V]) leave(f *flight[V], why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.ended {
		return false
	}
	if f.waiters--; f.waiters > 0 {
		return true
	}
	c.abortLocked(f, why)
	return true
}

// abortLocked ends f with an error while its build still runs: it cannot be joined, and its result is discarded.
func (c *Cache[V]) abortLocked(f *flight[V], err error) {
	f.err = err
	c.endLocked(f)
	f.cancel(err)
}

// endLocked removes f and wakes its waiters.
func (c *Cache[V]) endLocked(f *flight[V]) {
	f.ended = true
	delete(c.builds, f)
	c.unlistLocked(f)
	close(f.done)
}

// unlistLocked makes f unjoinable.
func (c *Cache[V]) unlistLocked(f *flight[V]) {
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
}

// build runs on the goroutine of the build.
func (c *Cache[V]) build(ctx context.Context, f *flight[V], load func(context.Context) (V, error)) {
	if f.work != nil {
		ctx = f.work.Context(ctx)
	}
	e := &entry[V]{key: f.key}
	built := false
	var err error
	// Deferred, because a Goexit skips everything else.
	defer func() {
		f.cancel(nil)
		c.finish(f, e, built, err)
	}()
	guard(f.key, &err, func() (err error) {
		e.value, err = load(ctx)
		return err
	})
	built = err == nil
	if built && c.opts.Cost != nil {
		guard(f.key, &err, func() error {
			e.cost = max(0, c.opts.Cost(e.key, e.value))
			return nil
		})
	}
}

// guard calls fn and sets *err to its error, or to an error for its panic. A Goexit cannot be stopped; *err then
// reports it to the remaining deferred functions.
func guard(key Key, err *error, fn func() error) {
	*err = fmt.Errorf("build of %s: %w", key, ErrGoexit)
	defer func() {
		if p := recover(); p != nil {
			*err = fmt.Errorf("build of %s: %w", key, panics.New(p))
		}
	}()
	*err = fn()
}

// finish distributes the result of the build, keeps it if allowed, and evicts unwanted values.
func (c *Cache[V]) finish(f *flight[V], e *entry[V], built bool, err error) {
	c.mu.Lock()
	var out []*entry[V]
	switch {
	case !f.ended && err == nil:
		out = c.publishLocked(f, e)
	case !f.ended:
		c.stats.Failures++
		f.err = err
		c.endLocked(f)
		fallthrough
	default:
		if built {
			out = append(out, e)
		}
	}
	c.mu.Unlock()
	c.evict(out)

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 && c.closed {
		close(c.quiet)
	}
}

// publishLocked passes the value of f to its waiters, and to the cache if it may be kept.
func (c *Cache[V]) publishLocked(f *flight[V], e *entry[V]) []*entry[V] {
	e.pins = f.waiters
	f.entry = e
	c.endLocked(f)
	c.stats.DroppedEntries++
	c.stats.DroppedBytes += e.cost
	if f.void {
		return nil
	}
	return c.insertLocked(e)
}
