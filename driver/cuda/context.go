package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/internal/reaper"
)

// primary is a device's retained primary context. The Device and each object made from it hold a reference. The context
// is released with the last one.
type primary struct {
	device cu.Device
	ctx    cu.Context

	name string // of the device
	// forgotten queues the objects that became unreachable without Close. Releasing them may wait for the device's
	// work, so each device has its own queue.
	forgotten reaper.Queue
	postponed postponed
	legacy    *track // the default stream
	// release releases a context that is not the primary one. It is nil for the primary context.
	release func() error
	green   cu.GreenCtx // 0 if the context is not of some multiprocessors

	refs atomic.Int64
}

func retainPrimary(device cu.Device, name string) (*primary, error) {
	p := &primary{device: device, name: name}
	p.refs.Store(1)
	if err := check("cuDevicePrimaryCtxRetain", cu.DevicePrimaryCtxRetain(&p.ctx, device)); err != nil {
		return nil, err
	}
	p.legacy = newTrack(p, 0)
	return p, nil
}

// get adds a reference. It fails if the context has been released.
func (p *primary) get() error {
	for {
		n := p.refs.Load()
		if n == 0 {
			return os.ErrClosed
		}
		if p.refs.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// released reports whether the last reference is gone.
func (p *primary) released() bool { return p.refs.Load() == 0 }

// put releases a reference.
func (p *primary) put() error {
	if p.refs.Add(-1) > 0 {
		return nil
	}
	p.legacy.forget()
	hostCalls.forget(p.legacy)
	if p.release != nil {
		return p.release()
	}
	return check("cuDevicePrimaryCtxRelease", cu.DevicePrimaryCtxRelease(p.device))
}

// enter locks the goroutine to its thread and makes the context current on it. If it succeeds, leave must follow, which
// restores the context that was current before.
func (p *primary) enter() error {
	runtime.LockOSThread()
	if r := cu.CtxPushCurrent(p.ctx); r != cu.SUCCESS {
		runtime.UnlockOSThread()
		return check("cuCtxPushCurrent", r)
	}
	return nil
}

func leave() {
	cu.CtxPopCurrent(nil)
	runtime.UnlockOSThread()
}

// do runs fn with the context current.
func (p *primary) do(fn func() error) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer leave()
	return fn()
}

// errNotReleased marks an error that occurred before anything was released. The object is unchanged, and Close can be
// called again.
type errNotReleased struct{ error }

func (e errNotReleased) Unwrap() error { return e.error }

// resource is embedded in all objects.
type resource struct {
	p    *primary
	life *lifetime
	// owned is the driver's resource. Only the closer uses it, between life.begin and life.end. It is nil after the
	// release.
	owned   *holding
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
	r.owned = &holding{p: p, kind: kind, bytes: bytes, free: free, life: r.life}
	r.cleanup = runtime.AddCleanup(r, func(h *holding) { h.p.forgotten.Add(h.reap) }, r.owned)
	return nil
}

// create calls make, which sets *handle by a method of the context, and makes r responsible for the handle. destroy, the
// driver's function with the given name, releases it. The caller holds a reference to the context.
func create[H any](r *resource, d *Device, kind string, bytes int64, handle *H, make func(c cu.Context) error, name string, destroy func(H) cu.Result) error {
	if err := make(d.p.ctx); err != nil {
		return err
	}
	h := *handle
	return r.own(d.p, kind, bytes, func() error { return check(name, destroy(h)) })
}

// made returns the object that make creates while the context cannot be released. It adds the operation to an error.
func made[T any](d *Device, op string, make func() (*T, error)) (*T, error) {
	if err := d.hold(); err != nil {
		return nil, d.opError(op, err)
	}
	defer d.p.put()
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

// close releases the object. A second call returns nil. If a capture forbids the release, it is postponed.
func (r *resource) close() error {
	if !r.life.begin() {
		return nil
	}
	return r.finish(r.owned.release())
}

// finish ends a release that began with life.begin. err is its result.
func (r *resource) finish(err error) error {
	h := r.owned
	capturing := errors.Is(err, ErrCapturing)
	if capturing && h.captured {
		err = errNotReleased{fmt.Errorf("%w: close the %s when the capture has ended", ErrCapturing, h.kind)}
	}
	if errors.As(err, &errNotReleased{}) {
		r.life.end(false)
		return err
	}
	r.cleanup.Stop()
	r.owned = nil
	r.life.end(true)
	if capturing {
		h.p.postponed.add(h)
		return nil
	}
	return errors.Join(err, h.p.put())
}

// discard closes an object that was not returned to a caller. If the first close fails before it released anything,
// discard retries.
func (r *resource) discard() error {
	err := r.close()
	if errors.As(err, &errNotReleased{}) {
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
