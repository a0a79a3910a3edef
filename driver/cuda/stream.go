package cuda

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// StreamOptions configures a stream. The zero value does not synchronise with the default stream.
type StreamOptions struct {
	// Blocking makes work of the stream wait for work of the default stream, and vice versa.
	Blocking bool
	// Priority is the stream's priority; lower numbers are served first. Values outside of [Device.PriorityRange] are
	// clamped.
	Priority int
}

// Stream is a queue of work on a device. Work in one stream is executed in order, work of different streams in any
// order. Memory that queued work uses may be closed, because Close waits for the work.
type Stream struct {
	resource
	dev    *Device
	handle cu.Stream
	track  *track
}

// NewStream returns a stream, which the caller owns.
func (d *Device) NewStream(opts StreamOptions) (*Stream, error) {
	return made(d, "new stream", func() (*Stream, error) { return d.newStream(opts) })
}

// newStream is NewStream for callers that hold a reference to the context.
func (d *Device) newStream(opts StreamOptions) (*Stream, error) {
	flags := cu.STREAM_NON_BLOCKING
	if opts.Blocking {
		flags = cu.STREAM_DEFAULT
	}
	if int(int32(opts.Priority)) != opts.Priority {
		return nil, invalid("stream priority %d", opts.Priority)
	}
	s := &Stream{dev: d}
	if err := d.p.makeStream(&s.handle, flags, int32(opts.Priority)); err != nil {
		return nil, err
	}
	s.track = newTrack(d.p, s.handle)
	if err := s.own(d.p, "stream", 0, s.track.destroy); err != nil {
		return nil, err
	}
	s.release.captured = true
	return s, nil
}

// PriorityRange returns the least and the greatest priority of streams. The greatest is the lower number.
func (d *Device) PriorityRange() (least, greatest int, err error) {
	var l, g int32
	err = d.invoke("cuCtxGetStreamPriorityRange", func(c cu.Context) cu.Result { return c.CtxGetStreamPriorityRange(&l, &g) })
	return int(l), int(g), d.opError("stream priorities", err)
}

// Device returns the stream's device. The caller borrows it.
func (s *Stream) Device() *Device { return s.dev }

// Handle returns the stream for calls of package cu. It is valid until Close. It is 0, the default stream, after Close
// and for a stream that wraps the default stream.
func (s *Stream) Handle() cu.Stream {
	if s.use() != nil {
		return 0
	}
	defer s.done()
	s.expose()
	return s.handle
}

// Synchronize returns when all work queued so far is done, and reports errors of that work. It occupies a thread while
// it waits.
func (s *Stream) Synchronize() error {
	return s.dev.opError("synchronize stream", s.invoke("cuStreamSynchronize", func(c cu.Context) cu.Result {
		last := s.track.issued.Load()
		r := c.StreamSynchronize(s.handle)
		if r == cu.SUCCESS {
			s.track.complete(last)
		}
		return r
	}))
}

// Idle reports whether all work queued so far is done, and returns errors of that work.
func (s *Stream) Idle() (bool, error) {
	idle := false
	err := s.invoke("cuStreamQuery", func(c cu.Context) cu.Result {
		last := s.track.issued.Load()
		r := c.StreamQuery(s.handle)
		if idle = r == cu.SUCCESS; idle {
			s.track.complete(last)
		}
		if r == cu.ERROR_NOT_READY {
			return cu.SUCCESS
		}
		return r
	})
	return idle, s.dev.opError("query stream", err)
}

// Wait makes work that is queued later wait for the event, as it was last recorded. It borrows e, which may be of
// another device or process.
func (s *Stream) Wait(e *Event) error {
	return s.dev.opError("wait", s.with(&e.resource, func(ctx cu.Context) error {
		if recordings.active.Load() > 0 { // the wait may make the stream part of a capture
			defer s.track.lockCapture()()
		}
		return check("cuStreamWaitEvent", ctx.StreamWaitEvent(s.handle, e.handle, 0))
	}))
}

// with runs fn while the stream and the other object cannot be released. fn makes its calls by methods of the stream's
// context.
func (s *Stream) with(other *resource, fn func(ctx cu.Context) error) error {
	return withAll([]*resource{&s.resource, other}, func() error { return fn(s.p.ctx) })
}

// queue runs fn, which queues work in the stream by methods of the context, and records that the work uses the objects.
func (s *Stream) queue(used []*resource, fn func(c cu.Context) error) error {
	return withAll(append(used, &s.resource), func() error {
		err := fn(s.p.ctx)
		for _, r := range used {
			s.track.mark(r.life)
		}
		return err
	})
}

// Close waits for the work and destroys the stream. It fails with [ErrCapturing] while the stream captures. A second
// Close returns nil.
func (s *Stream) Close() error { return s.dev.opError("close stream", s.close()) }

// WriteValue64 queues a write of value to 8 bytes of memory at off, which must be a multiple of 8. The write is ordered
// after all work queued before. It needs CUDA 11.7.
func (s *Stream) WriteValue64(m *Memory, off int64, value uint64) error {
	if err := errors.Join(m.writableRange(off, 8), aligned(off, 8)); err != nil {
		return s.dev.opError("write value", err)
	}
	return s.dev.opError("write value", s.queue([]*resource{&m.resource}, func(c cu.Context) error {
		return check("cuStreamWriteValue64", c.StreamWriteValue64(s.handle, m.ptr+cu.DevicePtr(off), value, 0))
	}))
}

// WaitValue64 makes work that is queued later wait until the 8 bytes at off, a multiple of 8, are at least value. The
// comparison wraps around. If the writer dies, the stream waits forever. It needs CUDA 11.7.
func (s *Stream) WaitValue64(m *Memory, off int64, value uint64) error {
	if err := errors.Join(m.inRange(off, 8), aligned(off, 8)); err != nil {
		return s.dev.opError("wait value", err)
	}
	return s.dev.opError("wait value", s.queue([]*resource{&m.resource}, func(c cu.Context) error {
		return check("cuStreamWaitValue64",
			c.StreamWaitValue64(s.handle, m.ptr+cu.DevicePtr(off), value, cu.STREAM_WAIT_VALUE_GEQ))
	}))
}

func aligned(off, to int64) error {
	if off%to != 0 {
		return invalid("offset %d is not a multiple of %d", off, to)
	}
	return nil
}
