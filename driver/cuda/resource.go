package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// resource makes a type an object: it counts the uses and has the release. LIFETIMES.md describes the rules.
type resource struct {
	p    *primary
	life *lifetime
	// release is nil once it has run or is postponed. Only the closer uses it, between life.begin and life.end.
	release *release
	cleanup runtime.Cleanup
}

// own makes r responsible for a resource and takes a reference to the context. If own fails, it has called free. free
// runs with the context current when no queued work uses the resource. It must not refer to the object that contains r,
// because that would keep the object reachable. kind and bytes describe the resource.
func (r *resource) own(p *primary, kind string, bytes int64, free func() error) error {
	if err := p.get(); err != nil {
		return errors.Join(err, p.do(free))
	}
	r.p = p
	r.life = newLifetime()
	r.release = &release{p: p, kind: kind, bytes: bytes, free: free, life: r.life}
	r.cleanup = runtime.AddCleanup(r, func(h *release) { h.p.forgotten.Add(h.reap) }, r.release)
	return nil
}

// create calls make, which sets *handle by a method of the context, and makes r responsible for the handle. destroy, the
// driver's function with the given name, releases it. The caller holds a reference to the context.
func create[H any](r *resource, d *Device, kind string, bytes int64, handle *H, make func(c cu.Context) error, name string, destroy func(H) cu.Result) error {
	if err := make(d.p.ctx); err != nil {
		return err
	}
	h := *handle
	return r.own(d.p, kind, bytes, func() error { return freed(name, destroy(h)) })
}

// made returns the object that make creates while the context cannot be released. It adds the operation to an error.
func made[T any](d *Device, op string, make func() (*T, error)) (*T, error) {
	if err := d.hold(); err != nil {
		return nil, d.opError(op, err)
	}
	defer func() { _ = d.p.drop() }()
	object, err := make()
	if err != nil {
		return nil, d.opError(op, err)
	}
	return object, nil
}

// expose records that an address or a handle of the object was returned to the caller. It is called between use and
// done.
func (r *resource) expose() { r.life.exposed.Store(true) }

// use keeps the object from being released until done. It never blocks, and fails with [os.ErrClosed] once Close has
// begun.
func (r *resource) use() error { return r.life.use() }

func (r *resource) done() { r.life.done() }

// call runs fn between use and done. fn calls the driver by methods of the context.
func (r *resource) call(fn func(c cu.Context) error) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.done()
	return fn(r.p.ctx)
}

// locked is call for an fn whose calls must be made by one thread. The context is current on it.
func (r *resource) locked(fn func() error) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.done()
	return r.p.do(fn)
}

// invoke makes one call of the driver in the context, between use and done. fn is the C function, and call calls it by a
// method of the context, which sets the context and calls in one crossing without a lock of the thread.
func (r *resource) invoke(fn string, call func(c cu.Context) cu.Result) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.done()
	return check(fn, call(r.p.ctx))
}

// callAndWait runs fn, which queues work in the default stream and waits for it. If fn fails, the work may be unfinished.
// With default streams by thread, both calls must be made by one thread.
func (r *resource) callAndWait(fn func() error) error {
	return r.locked(func() error {
		err := fn()
		if err != nil {
			r.p.legacy.mark(r.life)
		}
		return err
	})
}

// withAll runs fn while none of the objects can be released.
func withAll(used []*resource, fn func() error) error {
	for i, r := range used {
		if err := r.use(); err != nil {
			doneAll(used[:i])
			return err
		}
	}
	defer doneAll(used)
	return fn()
}

func doneAll(used []*resource) {
	for _, r := range used {
		r.done()
	}
}

// close releases the object. If it fails with errNotReleased, it can be repeated. After a success, a call returns nil. If
// a capture forbids the release, it is postponed.
func (r *resource) close() error {
	if !r.life.begin() {
		return nil
	}
	return r.finish(r.release.run())
}

// finish ends a release that began with life.begin. err is the result of the release.
func (r *resource) finish(err error) error {
	h := r.release
	capturing := errors.Is(err, ErrCapturing)
	switch {
	case capturing && h.captured:
		r.life.end(false)
		return errNotReleased{error: fmt.Errorf("%w: close the %s when the capture has ended", ErrCapturing, h.kind)}
	case capturing:
		r.end()
		h.p.postponed.add(h)
		return nil
	case mustRetry(err) && h.begun:
		r.life.retry()
		return err
	case mustRetry(err):
		r.life.end(false)
		return err
	}
	r.end()
	return err
}

// end separates the object from its release, which has run or is postponed.
func (r *resource) end() {
	r.cleanup.Stop()
	r.release = nil
	r.life.end(true)
}

// discard closes an object that was not returned to a caller. If the first close fails, discard retries. If that fails
// too, the garbage collector retries, because nothing refers to the object.
func (r *resource) discard() error {
	err := r.close()
	if mustRetry(err) {
		return errors.Join(err, r.close())
	}
	return err
}

// undo is a list of clean-up functions that run in reverse order if an operation of several steps fails.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// onError runs the functions if *err is set, and joins their errors to it.
func (u *undo) onError(err *error) {
	if *err == nil {
		return
	}
	for i := len(*u) - 1; i >= 0; i-- {
		if e := (*u)[i](); e != nil {
			*err = errors.Join(*err, e)
		}
	}
}
