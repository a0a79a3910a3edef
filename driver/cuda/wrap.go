package cuda

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Ownership states who releases a resource that other code made.
type Ownership bool

// The kinds of ownership.
const (
	// Borrowed resources stay with their owner, which must keep them until Close of the object that wraps them.
	Borrowed Ownership = false
	// Owned resources are released by Close. A function that fails to wrap one releases it, so the caller never does. It
	// releases nothing if the handle cannot be owned: null, a default stream, a part of an allocation, or one that the
	// driver does not know.
	Owned Ownership = true
)

// refuse releases a resource that could not be wrapped because of err, if it is owned. It returns err, with the error of
// a release that failed.
func (own Ownership) refuse(err error, fn string, free func() cu.Result) error {
	if own == Borrowed || gone(err) {
		return err
	}
	if freeErr := freeNow(fn, free); mustRetry(freeErr) {
		return errors.Join(err, freeErr)
	}
	return err
}

// refuseIn is refuse with the context of the device current. Without that context there are no resources.
func (d *Device) refuseIn(own Ownership, err error, fn string, free func() cu.Result) error {
	if own == Borrowed {
		return err
	}
	if enterErr := d.p.enter(); enterErr != nil {
		if gone(enterErr) {
			return err
		}
		return errors.Join(err, enterErr)
	}
	defer leave()
	return own.refuse(err, fn, free)
}

// WrapContext returns a device whose calls use a context that other code made, such as one of cuCtxCreate. The device of
// the context is in [Device.Info]. Close of an owned context destroys it when the last object made from the device is
// closed. Options are as for [Open].
func WrapContext(ctx cu.Context, own Ownership, opts ...Option) (*Device, error) {
	destroy := func() cu.Result { return cu.CtxDestroy(ctx) }
	d, err := wrapContext(ctx, opts)
	if err != nil {
		return nil, own.refuse(err, "cuCtxDestroy", destroy)
	}
	if own {
		d.p.release = func() error { return freed("cuCtxDestroy", destroy()) }
	}
	return d, nil
}

func wrapContext(ctx cu.Context, opts []Option) (*Device, error) {
	if _, err := count(); err != nil {
		return nil, err
	}
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	p := &primary{ctx: ctx, release: func() error { return nil }}
	p.refs.Store(1)
	return deviceIn(p, o)
}

// deviceIn returns a device with the context of p, whose device it determines.
func deviceIn(p *primary, o options) (*Device, error) {
	if err := check("cuCtxGetDevice", p.ctx.CtxGetDevice(&p.device)); err != nil {
		return nil, fmt.Errorf("context: %w", err)
	}
	d := &Device{p: p, handle: p.device, options: o}
	var err error
	if d.info, err = describe(int(p.device), p.device, o.kind); err != nil {
		return nil, err
	}
	p.name = d.info.String()
	p.legacy = newTrack(p, 0)
	return d, nil
}

// WrapStream returns a stream that other code made in the device's context, such as PyTorch's current stream. Handle 0
// is the default stream, which can only be borrowed. The per-thread default stream is refused with [driver.ErrInvalid],
// because goroutines move between threads.
//
// Objects that this package queues work for in the stream wait for that work when they are closed. Work that other code
// queues is not tracked. Close of a borrowed stream waits for the work that this package queued.
func (d *Device) WrapStream(h cu.Stream, own Ownership) (*Stream, error) {
	if h == cu.STREAM_PER_THREAD || h <= cu.STREAM_LEGACY && own == Owned {
		return nil, d.opError("wrap stream", invalid("stream %#x is a default stream of the driver", uintptr(h)))
	}
	s, err := made(d, "wrap stream", func() (*Stream, error) { return d.wrapStream(h, own) })
	if err != nil && h > cu.STREAM_LEGACY {
		err = d.refuseIn(own, err, "cuStreamDestroy", func() cu.Result { return cu.StreamDestroy(h) })
	}
	return s, err
}

// wrapStream is WrapStream for callers that hold a reference to the context. If it fails, it has not released h.
func (d *Device) wrapStream(h cu.Stream, own Ownership) (*Stream, error) {
	s := &Stream{dev: d, handle: h, track: d.p.legacy}
	if h <= cu.STREAM_LEGACY {
		s.handle = 0
		return s, s.own(d.p, "stream", 0, func() error { return nil })
	}
	var ctx cu.Context
	err := check("cuStreamGetCtx", d.p.ctx.StreamGetCtx(h, &ctx))
	if err == nil && ctx != d.p.ctx {
		err = fmt.Errorf("%w: the stream is of another context than %s: use WrapContext", ErrContext, d.info)
	}
	if err != nil {
		return nil, err
	}
	s.track = newTrack(d.p, h)
	end := s.track.leave
	if own {
		end = s.track.destroy
	}
	if err := s.own(d.p, "stream", 0, end); err != nil {
		return nil, err
	}
	s.release.captured = true
	return s, nil
}

// WrapEvent returns an event that other code made in the device's context.
func (d *Device) WrapEvent(h cu.Event, own Ownership) (*Event, error) {
	e, err := d.makeEvent("wrap event", func(_ cu.Context, out *cu.Event) error {
		query := func() error {
			switch r := cu.EventQuery(h); r {
			case cu.SUCCESS, cu.ERROR_NOT_READY, cu.ERROR_CAPTURED_EVENT:
				*out = h
				return nil
			default:
				return check("cuEventQuery", r)
			}
		}
		return d.p.do(func() error { return relaxed(query) }) // the mode is that of the thread
	}, own)
	if err != nil && h != 0 {
		err = d.refuseIn(own, err, "cuEventDestroy", func() cu.Result { return cu.EventDestroy(h) })
	}
	return e, err
}

// WrapMemory returns memory that other code allocated on the device: bytes at ptr, which must be within one allocation.
// Owned memory begins at ptr and is of cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged or a pool; Close frees it with
// cuMemFree. Memory of cuMemAlloc can be exported by kind cuda-ipc, with its offset in the allocation. Close waits for
// all work of the device, because other code uses the address too.
func (d *Device) WrapMemory(ptr cu.DevicePtr, bytes int64, own Ownership) (*Memory, error) {
	whole := true
	m, err := made(d, "wrap memory", func() (*Memory, error) {
		var base cu.DevicePtr
		var size uint64
		r := d.p.ctx.MemGetAddressRange(&base, &size, ptr)
		whole = r != cu.SUCCESS || ptr == base
		if err := d.checkRange(ptr, bytes, base, size, r); err != nil {
			return nil, err
		}
		if own == Owned && !whole {
			return nil, invalid("owned memory at %d in its allocation, not at the beginning", uint64(ptr-base))
		}
		return d.wrapMemory(ptr, bytes, own)
	})
	if err != nil && ptr != 0 && whole {
		err = d.refuseIn(own, err, "cuMemFree", func() cu.Result { return cu.MemFree(ptr) })
	}
	return m, err
}

// wrapMemory is WrapMemory for callers that hold a reference to the context. The range is valid.
func (d *Device) wrapMemory(ptr cu.DevicePtr, bytes int64, own Ownership) (*Memory, error) {
	m := &Memory{dev: d, ptr: ptr, bytes: bytes, writable: true}
	p := d.p
	m.export = func() (driver.Handle, error) {
		blob, offset, err := p.ipcHandle(ptr)
		return driver.Handle{Kind: driver.CUDAIPC, Blob: blob[:], Offset: offset}, err
	}
	free := func() error { return nil }
	if own {
		free = func() error { return freed("cuMemFree", cu.MemFree(ptr)) }
	}
	if err := m.own(d.p, "memory", bytes, free); err != nil {
		return nil, err
	}
	m.life.wide = true
	return m, nil
}

// checkRange checks that an allocation on the device contains the bytes. The allocation of size bytes at base is what the
// driver reports with result r.
func (d *Device) checkRange(ptr cu.DevicePtr, bytes int64, base cu.DevicePtr, size uint64, r cu.Result) error {
	switch {
	case ptr == 0 || bytes <= 0:
		return invalid("%d bytes at %#x", bytes, uint64(ptr))
	case r == cu.ERROR_NOT_FOUND:
		return fmt.Errorf("%w: %#x is not an address on %s: %w", driver.ErrInvalid, uint64(ptr), d.info, check("cuMemGetAddressRange", r))
	case r != cu.SUCCESS:
		return check("cuMemGetAddressRange", r)
	case uint64(ptr-base) > size || uint64(bytes) > size-uint64(ptr-base):
		return fmt.Errorf("%w: %d bytes at %d in an allocation of %d", driver.ErrRange, bytes, uint64(ptr-base), size)
	}
	return d.checkOrdinal(ptr)
}
