package cuda

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// track numbers the operations of one stream, so that releasing an object waits for its last use by one event. It
// outlives the stream.
type track struct {
	p      *primary
	handle cu.Stream     // 0 is the default stream
	issued atomic.Uint64 // operations queued
	ended  atomic.Uint64 // operations known to be done; equal to issued once the stream is destroyed

	// mu is held while a capture begins in the stream, while an event is recorded outside of one, and while the stream
	// is destroyed.
	mu     sync.Mutex
	closed bool
}

// tracks are the open streams of each context. Several devices of this package may share a context.
var tracks struct {
	mu sync.Mutex
	of map[cu.Context]map[*track]struct{}
}

func newTrack(p *primary, handle cu.Stream) *track {
	t := &track{p: p, handle: handle}
	tracks.mu.Lock()
	defer tracks.mu.Unlock()
	if tracks.of == nil {
		tracks.of = map[cu.Context]map[*track]struct{}{}
	}
	if tracks.of[p.ctx] == nil {
		tracks.of[p.ctx] = map[*track]struct{}{}
	}
	tracks.of[p.ctx][t] = struct{}{}
	return t
}

// forget removes the track of a stream that is destroyed, or whose context is.
func (t *track) forget() {
	tracks.mu.Lock()
	defer tracks.mu.Unlock()
	delete(tracks.of[t.p.ctx], t)
	if len(tracks.of[t.p.ctx]) == 0 {
		delete(tracks.of, t.p.ctx)
	}
}

func (t *track) completed(number uint64) bool { return t.ended.Load() >= number }

func (t *track) complete(number uint64) {
	for {
		old := t.ended.Load()
		if old >= number || t.ended.CompareAndSwap(old, number) {
			return
		}
	}
}

// mark records that the operation that was just queued uses the object. While the stream captures, it records that the
// graph uses it.
func (t *track) mark(l *lifetime) {
	if recordings.active.Load() > 0 {
		capturing, err := t.isCapturing()
		if capturing || err != nil {
			recordings.add(l)
		}
		if capturing {
			return
		}
	}
	l.mark(t, t.issued.Add(1))
}

// wait returns when the operation is done. It fails with ErrCapturing if the stream captures.
func (t *track) wait(number uint64) error {
	if t.completed(number) {
		return nil
	}
	return t.p.waitIfOpen(func() error {
		var last uint64
		err := waitEvent(func(e cu.Event) (err error) {
			last, err = t.record(e)
			return err
		})
		if err == nil {
			t.complete(last)
		}
		return err
	})
}

// record makes e represent the operations up to last. The stream's context is current.
func (t *track) record(e cu.Event) (last uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return t.issued.Load(), nil // an event that was never recorded counts as done
	}
	if capturing, err := t.isCapturing(); err != nil || capturing {
		return 0, errors.Join(err, errIf(capturing, ErrCapturing))
	}
	last = t.issued.Load()
	return last, check("cuEventRecord", cu.EventRecord(e, t.handle))
}

// destroy waits for the stream's work and destroys it. It fails with ErrCapturing if the stream captures.
func (t *track) destroy() error {
	t.mu.Lock()
	capturing, err := t.isCapturing()
	t.mu.Unlock()
	switch {
	case capturing:
		return ErrCapturing
	case err == nil:
		err = check("cuStreamSynchronize", cu.StreamSynchronize(t.handle))
	}
	if err := waitResult(err); err != nil && !gone(err) {
		return notReleased(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err = freed("cuStreamDestroy", cu.StreamDestroy(t.handle))
	if !mustRetry(err) {
		t.end()
	}
	return err
}

// end records that the stream is destroyed, or no longer used by this package. The caller holds t.mu. No work of the
// stream is left.
func (t *track) end() {
	t.closed = true
	t.complete(t.issued.Load())
	t.forget()
	hostCalls.forget(t)
}

// leave waits for the work that this package queued in a stream of another owner. It fails with ErrCapturing if the
// stream captures.
func (t *track) leave() error {
	if err := t.wait(t.issued.Load()); err != nil {
		return notReleased(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
	return nil
}

// outsideCapture runs fn, which queues work in the stream, while no capture can begin in it. It fails with ErrCapturing
// if the stream captures.
func (t *track) outsideCapture(fn func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if capturing, err := t.isCapturing(); err != nil || capturing {
		return errors.Join(err, errIf(capturing, ErrCapturing))
	}
	return fn()
}

// waitIfOpen runs wait with the context current. A context without references has no unfinished work.
func (p *primary) waitIfOpen(wait func() error) error {
	if p.get() != nil {
		return nil
	}
	defer func() { _ = p.drop() }() // best effort: the released object holds another reference
	return waitResult(p.do(wait))
}

// waitAll returns when all work of the context is done, including that of streams made outside of this package. It
// fails with ErrCapturing if a stream of the context captures.
func (p *primary) waitAll() error {
	err := waitEvent(p.recordAll)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return check("cuCtxSynchronize", cu.CtxSynchronize()) // drivers before CUDA 12.5
}

// recordAll makes e represent all work of the context.
func (p *primary) recordAll(e cu.Event) error {
	recordings.begin.Lock()
	defer recordings.begin.Unlock()
	tracks.mu.Lock()
	open := slices.Collect(maps.Keys(tracks.of[p.ctx]))
	tracks.mu.Unlock()
	for _, t := range open {
		if capturing, err := t.capturing(); err != nil || capturing {
			return errors.Join(err, errIf(capturing, ErrCapturing))
		}
	}
	return check("cuCtxRecordEvent", cu.CtxRecordEvent(p.ctx, e))
}

func (t *track) capturing() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, nil
	}
	return t.isCapturing()
}

// waitEvent makes an event, calls record with it, and waits for it.
func waitEvent(record func(cu.Event) error) error {
	e := new(cu.Event)
	if err := check("cuEventCreate", cu.EventCreate(e, cu.EVENT_DISABLE_TIMING)); err != nil {
		return err
	}
	defer destroyEvent(*e)
	if err := record(*e); err != nil {
		return err
	}
	return check("cuEventSynchronize", cu.EventSynchronize(*e))
}

// destroyEvent destroys an event that no object owns. Its work is done, or the driver keeps it until it is.
func destroyEvent(e cu.Event) {
	_ = freeNow("cuEventDestroy", func() cu.Result { return cu.EventDestroy(e) }) // best effort: the wait has ended
}

// isCapturing reports whether work for the stream would be recorded, or would disturb a capture. The query itself does
// not disturb a capture.
func (t *track) isCapturing() (bool, error) {
	status := cu.STREAM_CAPTURE_STATUS_NONE
	r := t.p.ctx.StreamIsCapturing(t.handle, &status)
	if r == cu.ERROR_STREAM_CAPTURE_IMPLICIT { // the default stream, which waits for one that captures
		return true, nil
	}
	return r == cu.SUCCESS && status != cu.STREAM_CAPTURE_STATUS_NONE, check("cuStreamIsCapturing", r)
}

// waitResult maps the error of a wait. A lost context has no running work, so the wait is over.
func waitResult(err error) error {
	var e *Error
	switch {
	case !errors.As(err, &e):
		return err
	case e.Code >= cu.ERROR_STREAM_CAPTURE_UNSUPPORTED && e.Code <= cu.ERROR_STREAM_CAPTURE_WRONG_THREAD:
		return ErrCapturing
	case errors.Is(err, ErrFault) || e.Code == cu.ERROR_CONTEXT_IS_DESTROYED:
		return nil
	}
	return err
}

func errIf(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// relaxed runs fn in a capture mode that lets the thread wait for streams that do not capture. The caller has locked
// the thread.
func relaxed(fn func() error) error {
	mode := new(cu.StreamCaptureMode)
	*mode = cu.STREAM_CAPTURE_MODE_RELAXED
	if err := waitResult(check("cuThreadExchangeStreamCaptureMode", cu.ThreadExchangeStreamCaptureMode(mode))); err != nil {
		return err
	}
	defer func() {
		for range 2 {
			if cu.ThreadExchangeStreamCaptureMode(mode) == cu.SUCCESS {
				return
			}
		}
	}()
	return fn()
}
