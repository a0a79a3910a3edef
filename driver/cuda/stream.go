package cuda

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// StreamOptions say how a stream is made. The zero value does not synchronise with the default stream.
type StreamOptions struct {
	// Blocking makes the stream wait for work of the default stream and the other way round.
	Blocking bool
	// Priority: lower numbers go first; the device says how far it goes ([Device.PriorityRange]), and what is outside
	// is taken to its edge.
	Priority int
}

// Stream is a queue of work on a device. Work in one stream is done in order, work of different streams in any. Memory
// that queued work uses may be closed: closing waits for the work.
type Stream struct {
	resource
	dev    *Device
	handle cu.Stream
}

// NewStream returns an owned stream.
func (d *Device) NewStream(opts StreamOptions) (*Stream, error) {
	if err := d.hold(); err != nil {
		return nil, d.opError("new stream", err)
	}
	defer d.p.put()
	s, err := d.newStream(opts)
	if err != nil {
		return nil, d.opError("new stream", err)
	}
	return s, nil
}

// newStream needs a reference to the context held.
func (d *Device) newStream(opts StreamOptions) (*Stream, error) {
	flags := cu.STREAM_NON_BLOCKING
	if opts.Blocking {
		flags = cu.STREAM_DEFAULT
	}
	if int(int32(opts.Priority)) != opts.Priority {
		return nil, invalid("stream priority %d", opts.Priority)
	}
	s := &Stream{dev: d}
	err := d.p.do(func() error {
		return check("cuStreamCreateWithPriority", cu.StreamCreateWithPriority(&s.handle, uint32(flags), int32(opts.Priority)))
	})
	if err != nil {
		return nil, err
	}
	h := s.handle
	err = s.own(d.p, "stream", 0, func() error {
		cu.StreamSynchronize(h) // what it reports is the work's
		return check("cuStreamDestroy", cu.StreamDestroy(h))
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// PriorityRange is the least and the greatest priority of streams; the greatest is the lower number.
func (d *Device) PriorityRange() (least, greatest int, err error) {
	var l, g int32
	err = d.do(func() error { return check("cuCtxGetStreamPriorityRange", cu.CtxGetStreamPriorityRange(&l, &g)) })
	return int(l), int(g), d.opError("stream priorities", err)
}

// Device is the stream's device; borrowed.
func (s *Stream) Device() *Device { return s.dev }

// Handle is the stream for calls of package cu, valid until Close; 0, which is the default stream, after it.
func (s *Stream) Handle() cu.Stream {
	if s.use() != nil {
		return 0
	}
	defer s.done()
	s.expose()
	return s.handle
}

// Synchronize returns when all work queued so far is done. It holds a thread while it waits. Errors of the work are
// reported here.
func (s *Stream) Synchronize() error {
	return s.dev.opError("synchronize stream", s.call(func() error {
		return check("cuStreamSynchronize", cu.StreamSynchronize(s.handle))
	}))
}

// Idle reports whether all work queued so far is done. Errors of the work are reported here.
func (s *Stream) Idle() (bool, error) {
	idle := false
	err := s.call(func() error {
		r := cu.StreamQuery(s.handle)
		idle = r == cu.SUCCESS
		if r == cu.ERROR_NOT_READY {
			return nil
		}
		return check("cuStreamQuery", r)
	})
	return idle, s.dev.opError("query stream", err)
}

// Wait makes work that is queued from now on wait for the event, as it was last recorded. It borrows e, which may be of
// another device or process.
func (s *Stream) Wait(e *Event) error {
	return s.dev.opError("wait", s.with(&e.resource, func() error {
		return check("cuStreamWaitEvent", cu.StreamWaitEvent(s.handle, e.handle, 0))
	}))
}

// with runs fn with the stream and another object kept from being closed.
func (s *Stream) with(other *resource, fn func() error) error {
	done, err := useBoth(&s.resource, other)
	if err != nil {
		return err
	}
	defer done()
	return s.p.do(fn)
}

// Close waits for the work and gives the stream back. A second Close is nil.
func (s *Stream) Close() error { return s.dev.opError("close stream", s.close()) }

// WriteValue64 queues a write of value to 8 bytes of memory at off, a multiple of 8, behind all work queued before.
func (s *Stream) WriteValue64(m *Memory, off int64, value uint64) error {
	if err := errors.Join(m.writableRange(off, 8), aligned(off, 8)); err != nil {
		return s.dev.opError("write value", err)
	}
	return s.dev.opError("write value", s.with(&m.resource, func() error {
		return check("cuStreamWriteValue64", cu.StreamWriteValue64(s.handle, m.ptr+cu.DevicePtr(off), value, 0))
	}))
}

// WaitValue64 makes work queued from now on wait until the 8 bytes at off, a multiple of 8, are at least value, as
// numbers that wrap around. Whoever is to write it may die: the stream waits for ever then.
func (s *Stream) WaitValue64(m *Memory, off int64, value uint64) error {
	if err := errors.Join(m.inRange(off, 8), aligned(off, 8)); err != nil {
		return s.dev.opError("wait value", err)
	}
	return s.dev.opError("wait value", s.with(&m.resource, func() error {
		return check("cuStreamWaitValue64",
			cu.StreamWaitValue64(s.handle, m.ptr+cu.DevicePtr(off), value, uint32(cu.STREAM_WAIT_VALUE_GEQ)))
	}))
}

func aligned(off, to int64) error {
	if off%to != 0 {
		return invalid("offset %d is no multiple of %d", off, to)
	}
	return nil
}
