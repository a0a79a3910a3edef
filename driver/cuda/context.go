package cuda

import (
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

// put releases a reference. The last one releases the context. If that fails with errNotReleased, the caller still has
// the reference.
func (p *primary) put() error {
	if p.refs.Add(-1) > 0 {
		return nil
	}
	if p.legacy != nil { // nil if the device could not be made
		p.legacy.forget()
		hostCalls.forget(p.legacy)
	}
	var err error
	if p.release != nil {
		err = p.release()
	} else {
		// The driver counts the references. After an error it may have released ours, and a second call would release that
		// of other code.
		err = check("cuDevicePrimaryCtxRelease", cu.DevicePrimaryCtxRelease(p.device))
	}
	if mustRetry(err) {
		p.refs.Store(1)
	}
	return err
}

// drop is put for a caller that cannot repeat it. A release that fails is repeated in the background.
func (p *primary) drop() error {
	err := p.put()
	if mustRetry(err) {
		p.postponed.add(&release{p: p, kind: "context", life: newLifetime(), freed: true})
	}
	return err
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
