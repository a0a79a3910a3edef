package cuda

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Device is one CUDA device of this process, with its primary context retained. It implements [driver.Device].
// All methods are safe for concurrent use.
type Device struct {
	p       *primary
	handle  cu.Device
	info    driver.Info
	options options
	driver.Reclaim

	mu      sync.Mutex
	closed  atomic.Bool // set under mu
	staging *staging

	closing  sync.Mutex // held by Close
	released bool       // the reference to the context is released
}

// options holds the settings of Open.
type options struct {
	kind        driver.HandleKind
	buffers     int
	bufferBytes int64
}

// Option configures a device that is opened.
type Option func(*options) error

// WithHandleKind sets how memory of [Device.Alloc] is shared: [driver.CUDAFD] (the default), [driver.CUDAIPC] for peers
// that support only that, or [driver.CUDAFabric]. Import accepts all kinds regardless of this option.
func WithHandleKind(kind driver.HandleKind) Option {
	return func(o *options) error {
		switch kind {
		case driver.CUDAFD, driver.CUDAIPC, driver.CUDAFabric:
			o.kind = kind
			return nil
		}
		return invalid("%q is not a kind of CUDA handle", string(kind))
	}
}

// WithStaging sets the number and size in bytes of the pinned buffers through which [Memory.LoadAt] copies. With two or
// more buffers, reading and copying overlap. They are allocated at the first load and kept until Close. The default is
// 4 buffers of 8 MiB.
func WithStaging(buffers int, bytes int64) Option {
	return func(o *options) error {
		if buffers < 1 || buffers > 64 || bytes < 4096 || bytes > 1<<30 {
			return invalid("%d staging buffers of %d bytes", buffers, bytes)
		}
		o.buffers, o.bufferBytes = buffers, bytes
		return nil
	}
}

// Open opens a device by its ordinal in this process. The caller owns the device. Open returns a
// [*driver.UnsupportedError] if the driver or the device is missing, or if the build does not support CUDA. It returns
// [driver.ErrInvalid] if no device has the ordinal.
func Open(ordinal int, opts ...Option) (*Device, error) {
	n, err := count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, invalid("no device cuda:%d: there are %d", ordinal, n)
	}
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	return open(ordinal, o)
}

func newOptions(opts []Option) (options, error) {
	o := options{kind: driver.CUDAFD, buffers: 4, bufferBytes: 8 << 20}
	for _, f := range opts {
		if err := f(&o); err != nil {
			return options{}, err
		}
	}
	return o, nil
}

// OpenUUID opens the device with the UUID, which is that of a GPU or of a MIG instance. It returns the same errors as
// [Open].
func OpenUUID(uuid driver.UUID, opts ...Option) (*Device, error) {
	infos, err := Devices()
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		if i.UUID == uuid {
			return Open(i.Index, opts...)
		}
	}
	for _, i := range infos {
		var gpu cu.UUID
		if cu.DeviceGetUuid_v1(&gpu, cu.Device(i.Index)) == cu.SUCCESS && gpu.Bytes == uuid {
			return nil, invalid("%s is a GPU in MIG mode: open its instance %s", uuid, i.UUID)
		}
	}
	return nil, invalid("no CUDA device has the UUID %s", uuid)
}

func open(ordinal int, o options) (_ *Device, err error) {
	d := &Device{options: o}
	if err := check("cuDeviceGet", cu.DeviceGet(&d.handle, int32(ordinal))); err != nil {
		return nil, err
	}
	if d.info, err = describe(ordinal, d.handle, o.kind); err != nil {
		return nil, err
	}
	if d.p, err = retainPrimary(d.handle, d.info.String()); err != nil {
		return nil, d.opError("open", err)
	}
	return d, nil
}

// Devices describes the devices visible to this process, ordered by ordinal, without opening them. It returns the same
// errors as [Open].
func Devices() ([]driver.Info, error) {
	n, err := count()
	if err != nil {
		return nil, err
	}
	infos := make([]driver.Info, 0, n)
	for i := range n {
		var h cu.Device
		if err := check("cuDeviceGet", cu.DeviceGet(&h, int32(i))); err != nil {
			return nil, err
		}
		info, err := describe(i, h, driver.CUDAFD)
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// count initialises the driver and returns the number of devices. It fails if there are none.
func count() (int, error) {
	r := cu.Init(0)
	if r == cu.ERROR_NO_DEVICE {
		return 0, &driver.UnsupportedError{Feature: "CUDA", Reason: "there is no CUDA device, or CUDA_VISIBLE_DEVICES hides them all"}
	}
	if r == cu.ERROR_STUB_LIBRARY {
		return 0, &driver.UnsupportedError{Feature: "CUDA", Reason: cu.Path() + " is the toolkit's stub for linking",
			Requires: "the driver's library: take the stub's directory out of LD_LIBRARY_PATH, or name the library with SHAREDTENSOR_LIBCUDA"}
	}
	if err := check("cuInit", r); err != nil {
		return 0, err
	}
	var n int32
	if err := check("cuDeviceGetCount", cu.DeviceGetCount(&n)); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, &driver.UnsupportedError{Feature: "CUDA", Reason: "there is no CUDA device"}
	}
	return int(n), nil
}

// DriverVersion returns the CUDA version that the driver supports. Without a driver it returns a
// [*driver.UnsupportedError].
func DriverVersion() (cu.Version, error) {
	var v int32
	err := check("cuDriverGetVersion", cu.DriverGetVersion(&v))
	return cu.Version(v), err
}

// Info describes the device. It always succeeds and never blocks.
func (d *Device) Info() driver.Info { return d.info }

// String returns the device's short name, such as cuda:0.
func (d *Device) String() string { return d.info.String() }

// Handle returns the device for calls of package cu.
func (d *Device) Handle() cu.Device { return d.handle }

// Context returns the primary context for calls of package cu. The device keeps ownership. Its methods call functions in
// the context, each in one crossing and without a lock of the thread: d.Context().MemGetInfo(&free, &total). They must end
// before Close.
func (d *Device) Context() cu.Context { return d.p.ctx }

// Call runs fn while the context cannot be released. fn receives the context, whose methods call package cu, each in one
// crossing and without a lock of the thread:
//
//	err := dev.Call(func(c cu.Context) error { return c.MemGetInfo(&free, &total).Err() })
func (d *Device) Call(fn func(c cu.Context) error) (err error) {
	if err := d.hold(); err != nil {
		return err
	}
	defer func() { err = joinErrors([]error{err, d.p.drop()}) }()
	return fn(d.p.ctx)
}

// Do locks the goroutine to its thread, makes the device's context current on it and runs fn. It is for code that needs a
// current context: functions of package cu, other C libraries, and methods of other devices and their objects. Do restores
// the context that was current before, also if fn panics. It makes two calls into C in addition to those of fn, so
// [Device.Call] is better for calls of package cu.
func (d *Device) Do(fn func() error) error {
	return d.Call(func(cu.Context) error { return d.p.do(fn) })
}

// invoke makes one call of the driver in the device's context, while the context cannot be released. fn is the C function.
func (d *Device) invoke(fn string, call func(c cu.Context) cu.Result) (err error) {
	if err := d.hold(); err != nil {
		return err
	}
	defer func() { err = joinErrors([]error{err, d.p.drop()}) }()
	return check(fn, call(d.p.ctx))
}

// hold takes a reference to the context if the device is open. The caller releases it with d.p.put.
func (d *Device) hold() error {
	if d.closed.Load() {
		return os.ErrClosed
	}
	return d.p.get()
}

// Synchronize returns when all work that this process started in the device's primary context is done.
func (d *Device) Synchronize() error {
	return d.opError("synchronize", d.invoke("cuCtxSynchronize", cu.Context.CtxSynchronize))
}

// Close frees the staging buffers and releases the device's reference to the primary context. The context is released
// when the last object made from the device is closed. A second Close returns nil, or retries if the first failed.
func (d *Device) Close() error {
	d.closing.Lock()
	defer d.closing.Unlock()
	d.mu.Lock()
	d.closed.Store(true)
	s := d.staging
	d.mu.Unlock()
	if d.released {
		return nil
	}
	err := s.close()
	if mustRetry(err) {
		return d.opError("close", err)
	}
	d.mu.Lock()
	d.staging = nil
	d.mu.Unlock()
	putErr := d.p.put()
	d.released = !mustRetry(putErr)
	return d.opError("close", joinErrors([]error{err, putErr}))
}
