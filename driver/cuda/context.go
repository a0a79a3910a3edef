package cuda

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/internal/reaper"
)

// primary is a device's retained primary context. The Device and each object made from it hold a reference; the last
// one gone, it is released.
type primary struct {
	device cu.Device
	ctx    cu.Context

	name string // of the device
	// forgotten are the objects that the garbage collector found unclosed. Giving them back may wait for the device's
	// work, which must stall nothing but the objects of this device.
	forgotten reaper.Queue

	mu   sync.Mutex
	refs int
}

func retainPrimary(device cu.Device, name string) (*primary, error) {
	p := &primary{device: device, name: name, refs: 1}
	if err := check("cuDevicePrimaryCtxRetain", cu.DevicePrimaryCtxRetain(&p.ctx, device)); err != nil {
		return nil, err
	}
	return p, nil
}

// get adds a reference; it fails where the last one is gone.
func (p *primary) get() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 {
		return os.ErrClosed
	}
	p.refs++
	return nil
}

// put gives a reference back.
func (p *primary) put() error {
	p.mu.Lock()
	p.refs--
	last := p.refs == 0
	p.mu.Unlock()
	if !last {
		return nil
	}
	return check("cuDevicePrimaryCtxRelease", cu.DevicePrimaryCtxRelease(p.device))
}

// enter locks the goroutine to its thread and makes the context current on it. Where it succeeds, leave must follow.
// The context that was current before is not restored: threads of a Go program have none of their own.
func (p *primary) enter() error {
	runtime.LockOSThread()
	if r := cu.CtxSetCurrent(p.ctx); r != cu.SUCCESS {
		runtime.UnlockOSThread()
		return check("cuCtxSetCurrent", r)
	}
	return nil
}

func leave() { runtime.UnlockOSThread() }

// do runs fn with the context current.
func (p *primary) do(fn func() error) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer leave()
	return fn()
}

// errNotReleased marks an error that came before anything was given back: the object is as it was, and Close can be
// tried again.
type errNotReleased struct{ error }

func (e errNotReleased) Unwrap() error { return e.error }

// resource is what all objects share: a lock that keeps Close away from calls under way, and what Close gives back.
type resource struct {
	p  *primary
	mu sync.RWMutex
	// owned is what the object stands for; nil once that was given back.
	owned   *holding
	exposed *atomic.Bool // that of owned, which outlives it
	cleanup runtime.Cleanup
}

// own makes r responsible for what release gives back, and takes a reference to the context. Where it fails, it has
// called release. release runs with the context current. It must not refer to the object that r is part of, or the
// cleanup would keep that alive. kind and bytes say what it is.
func (r *resource) own(p *primary, kind string, bytes int64, release func() error) error {
	if err := p.get(); err != nil {
		return errors.Join(err, p.do(release))
	}
	r.p = p
	r.exposed = new(atomic.Bool)
	r.owned = &holding{p: p, kind: kind, bytes: bytes, free: release, exposed: r.exposed}
	r.cleanup = runtime.AddCleanup(r, func(h *holding) { h.p.forgotten.Add(h.reap) }, r.owned)
	return nil
}

// expose notes that an address or a handle of the object is handed out; the caller is between use and done.
func (r *resource) expose() { r.exposed.Store(true) }

// use keeps Close waiting until done. It fails with [os.ErrClosed] after Close.
func (r *resource) use() error {
	r.mu.RLock()
	if r.owned == nil {
		r.mu.RUnlock()
		return os.ErrClosed
	}
	return nil
}

func (r *resource) done() { r.mu.RUnlock() }

// call runs fn with the context current, between use and done.
func (r *resource) call(fn func() error) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.done()
	return r.p.do(fn)
}

// close gives the object back. A second call is nil.
func (r *resource) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owned == nil {
		return nil
	}
	err := r.owned.release()
	if errors.As(err, &errNotReleased{}) {
		return err
	}
	return errors.Join(err, r.disownLocked())
}

// disownLocked ends the responsibility for what was given back.
func (r *resource) disownLocked() error {
	r.cleanup.Stop()
	r.owned = nil
	return r.p.put()
}

// discard closes what no caller has to close: where the first try could not begin, it tries again.
func (r *resource) discard() error {
	err := r.close()
	if errors.As(err, &errNotReleased{}) {
		return errors.Join(err, r.close())
	}
	return err
}

// undo is a list of steps back, run in reverse where an operation of many steps fails.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// onError runs the steps if *err is set, and adds what they report.
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
