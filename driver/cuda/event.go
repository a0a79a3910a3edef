package cuda

import (
	"time"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// EventOptions say how an event is made. The zero value orders work and measures nothing.
type EventOptions struct {
	// Timing makes [Event.Since] work; it costs a little at each record.
	Timing bool
	// Interprocess makes the event one that other processes can open. It excludes Timing. There are about 22,000 of
	// them.
	Interprocess bool
	// BlockingSync makes [Event.Synchronize] sleep rather than spin.
	BlockingSync bool
}

// Event marks a point in a stream.
type Event struct {
	resource
	dev    *Device
	handle cu.Event
}

// NewEvent returns an owned event.
func (d *Device) NewEvent(opts EventOptions) (*Event, error) {
	if opts.Timing && opts.Interprocess {
		return nil, d.opError("new event", invalid("an event between processes cannot measure time"))
	}
	flags := cu.EVENT_DEFAULT
	if !opts.Timing {
		flags |= cu.EVENT_DISABLE_TIMING
	}
	if opts.Interprocess {
		flags |= cu.EVENT_INTERPROCESS
	}
	if opts.BlockingSync {
		flags |= cu.EVENT_BLOCKING_SYNC
	}
	e, err := d.makeEvent(func(h *cu.Event) error { return check("cuEventCreate", cu.EventCreate(h, uint32(flags))) })
	if err != nil {
		return nil, d.opError("new event", err)
	}
	return e, nil
}

// OpenEvent returns an owned event that another process made with Interprocess and named by [Event.IPCHandle]. Both
// processes need the same /dev/shm. An event of this process is refused with [driver.ErrHandle].
func (d *Device) OpenEvent(handle [64]byte) (*Event, error) {
	e, err := d.makeEvent(func(h *cu.Event) error {
		return check("cuIpcOpenEventHandle", cu.IpcOpenEventHandle(h, cu.IpcEventHandle{Reserved: handle}))
	})
	if err != nil {
		return nil, d.opError("open event", handleError(err))
	}
	return e, nil
}

func (d *Device) makeEvent(create func(*cu.Event) error) (*Event, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	defer d.p.put()
	e := &Event{dev: d}
	if err := d.p.do(func() error { return create(&e.handle) }); err != nil {
		return nil, err
	}
	h := e.handle
	if err := e.own(d.p, "event", 0, func() error { return check("cuEventDestroy", cu.EventDestroy(h)) }); err != nil {
		return nil, err
	}
	return e, nil
}

// Handle is the event for calls of package cu, valid until Close; 0 after it.
func (e *Event) Handle() cu.Event {
	if e.use() != nil {
		return 0
	}
	defer e.done()
	e.expose()
	return e.handle
}

// Record makes the event stand for all work that is in the stream now. The stream is of the event's device.
func (e *Event) Record(s *Stream) error {
	return e.dev.opError("record event", s.with(&e.resource, func() error {
		return check("cuEventRecord", cu.EventRecord(e.handle, s.handle))
	}))
}

// Done reports whether the work that the event stands for is done; it is where the event was never recorded.
func (e *Event) Done() (bool, error) {
	done := false
	err := e.call(func() error {
		r := cu.EventQuery(e.handle)
		done = r == cu.SUCCESS
		if r == cu.ERROR_NOT_READY {
			return nil
		}
		return check("cuEventQuery", r)
	})
	return done, e.dev.opError("query event", err)
}

// Synchronize returns when the work that the event stands for is done. It holds a thread while it waits.
func (e *Event) Synchronize() error {
	return e.dev.opError("synchronize event", e.call(func() error {
		return check("cuEventSynchronize", cu.EventSynchronize(e.handle))
	}))
}

// Since is the time on the device between two events with Timing that are done: from start to e.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms float32
	err := e.elapsed(start, &ms)
	return time.Duration(float64(ms) * float64(time.Millisecond)), e.dev.opError("elapsed time", err)
}

func (e *Event) elapsed(start *Event, ms *float32) error {
	done, err := useBoth(&e.resource, &start.resource)
	if err != nil {
		return err
	}
	defer done()
	return e.p.do(func() error {
		r := cu.EventElapsedTime(ms, start.handle, e.handle)
		if r.Missing() { // drivers before CUDA 12.8
			r = cu.EventElapsedTime_v1(ms, start.handle, e.handle)
		}
		return check("cuEventElapsedTime", r)
	})
}

// IPCHandle returns 64 bytes with which another process opens the event, which was made with Interprocess. The event
// has to stay open until it did.
func (e *Event) IPCHandle() ([64]byte, error) {
	var h cu.IpcEventHandle
	err := e.call(func() error { return check("cuIpcGetEventHandle", cu.IpcGetEventHandle(&h, e.handle)) })
	return h.Reserved, e.dev.opError("export event", err)
}

// Close gives the event back. A second Close is nil.
func (e *Event) Close() error { return e.dev.opError("close event", e.close()) }
