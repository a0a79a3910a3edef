package cuda

import (
	"time"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// EventOptions configures an event. The zero value makes an event that orders work and does not measure time.
type EventOptions struct {
	// Timing enables [Event.Since], at a small cost for each record.
	Timing bool
	// Interprocess allows other processes to open the event. It excludes Timing. The driver limits the number of such
	// events to about 22,000.
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

// NewEvent returns an event, which the caller owns.
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
	return d.makeEvent("new event", func(c cu.Context, h *cu.Event) error { return check("cuEventCreate", c.EventCreate(h, flags)) }, Owned)
}

// OpenEvent returns an event that another process made with Interprocess and exported with [Event.IPCHandle]. The
// caller owns it. Both processes need the same /dev/shm. An event of this process is refused with [driver.ErrHandle].
func (d *Device) OpenEvent(handle [64]byte) (*Event, error) {
	return d.makeEvent("open event", func(c cu.Context, h *cu.Event) error {
		return handleError(check("cuIpcOpenEventHandle", c.IpcOpenEventHandle(h, cu.IpcEventHandle{Reserved: handle})))
	}, Owned)
}

func (d *Device) makeEvent(op string, make func(cu.Context, *cu.Event) error, own Ownership) (*Event, error) {
	destroy := cu.EventDestroy
	if own == Borrowed {
		destroy = func(cu.Event) cu.Result { return cu.SUCCESS }
	}
	return made(d, op, func() (*Event, error) {
		e := &Event{dev: d}
		return e, create(&e.resource, d, "event", 0, &e.handle, func(c cu.Context) error { return make(c, &e.handle) }, "cuEventDestroy", destroy)
	})
}

// Handle returns the event for calls of package cu. It is valid until Close, and 0 after it.
func (e *Event) Handle() cu.Event {
	if e.use() != nil {
		return 0
	}
	defer e.done()
	e.expose()
	return e.handle
}

// Record makes the event represent all work that is in the stream now. The stream must be of the event's device.
func (e *Event) Record(s *Stream) error {
	return e.dev.opError("record event", s.with(&e.resource, func(ctx cu.Context) error {
		return check("cuEventRecord", ctx.EventRecord(e.handle, s.handle))
	}))
}

// Done reports whether the event's work is done. It returns true if the event was never recorded.
func (e *Event) Done() (bool, error) {
	done := true
	err := e.invoke("cuEventQuery", func(c cu.Context) cu.Result {
		r := c.EventQuery(e.handle)
		if r == cu.ERROR_NOT_READY {
			done = false
			return cu.SUCCESS
		}
		return r
	})
	return done && err == nil, e.dev.opError("query event", err)
}

// Synchronize returns when the event's work is done. It occupies a thread while it waits.
func (e *Event) Synchronize() error {
	return e.dev.opError("synchronize event", e.invoke("cuEventSynchronize", func(c cu.Context) cu.Result {
		return c.EventSynchronize(e.handle)
	}))
}

// Since returns the time on the device from start to e. Both events need Timing and must be done.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms float32
	err := e.elapsed(start, &ms)
	return time.Duration(float64(ms) * float64(time.Millisecond)), e.dev.opError("elapsed time", err)
}

func (e *Event) elapsed(start *Event, ms *float32) error {
	return withAll([]*resource{&e.resource, &start.resource}, func() error {
		r := e.p.ctx.EventElapsedTime(ms, start.handle, e.handle)
		if r.Missing() { // drivers before CUDA 12.8
			r = e.p.ctx.EventElapsedTime_v1(ms, start.handle, e.handle)
		}
		return check("cuEventElapsedTime", r)
	})
}

// IPCHandle returns 64 bytes with which another process can open the event, which must have been made with
// Interprocess. The event must stay open until the other process has opened it.
func (e *Event) IPCHandle() ([64]byte, error) {
	var h cu.IpcEventHandle
	err := e.invoke("cuIpcGetEventHandle", func(c cu.Context) cu.Result { return c.IpcGetEventHandle(&h, e.handle) })
	return h.Reserved, e.dev.opError("export event", err)
}

// Close destroys the event. A second Close returns nil.
func (e *Event) Close() error { return e.dev.opError("close event", e.close()) }
