package cuda

import (
	"runtime"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// HostMemory is pinned memory: host memory that the device reads and writes directly, without the driver's staging.
type HostMemory struct {
	resource
	dev        *Device
	data       []byte
	registered bool // the caller owns the memory
	readOnly   bool // the caller's mapping is read-only
}

// AllocHost returns pinned memory, which the caller owns. Pinned memory cannot be swapped out, so use it sparingly.
func (d *Device) AllocHost(bytes int64) (*HostMemory, error) {
	return made(d, "alloc host", func() (*HostMemory, error) { return d.pinnedHost(bytes) })
}

// pinnedHost is AllocHost for callers that hold a reference to the context.
func (d *Device) pinnedHost(bytes int64) (*HostMemory, error) {
	if bytes <= 0 || int64(int(bytes)) != bytes {
		return nil, invalid("%d bytes of pinned memory", bytes)
	}
	var at unsafe.Pointer
	m := &HostMemory{dev: d}
	make := func(c cu.Context) error {
		return check("cuMemHostAlloc", c.MemHostAlloc(&at, uint64(bytes), cu.MEMHOSTALLOC_PORTABLE))
	}
	if err := create(&m.resource, d, "pinned host memory", bytes, &at, make, "cuMemFreeHost", cu.MemFreeHost); err != nil {
		return nil, err
	}
	m.data = unsafe.Slice((*byte)(at), int(bytes))
	return m, nil
}

// RegisterHost pins existing memory, such as a mapped file, until Close. It borrows data, which must stay mapped until
// then. Memory of the Go heap stays reachable through the result. The driver pins whole pages.
func (d *Device) RegisterHost(data []byte) (*HostMemory, error) {
	return made(d, "register host memory", func() (*HostMemory, error) { return d.registerHost(data, false) })
}

// RegisterHostReadOnly is RegisterHost for memory that is mapped read-only, such as an imported slab, for which
// [Device.RegisterHost] fails. Copies to it are refused with [driver.ErrReadOnly]. If the device does not support it,
// the error is a [*driver.UnsupportedError].
func (d *Device) RegisterHostReadOnly(data []byte) (*HostMemory, error) {
	return made(d, "register host memory", func() (*HostMemory, error) { return d.registerHost(data, true) })
}

func (d *Device) registerHost(data []byte, readOnly bool) (*HostMemory, error) {
	return d.register(data, readOnly, func() {})
}

// register pins data. It calls released after it is unpinned.
func (d *Device) register(data []byte, readOnly bool, released func()) (*HostMemory, error) {
	if len(data) == 0 {
		return nil, invalid("no bytes to register")
	}
	at := unsafe.Pointer(unsafe.SliceData(data))
	flags := uint32(cu.MEMHOSTREGISTER_PORTABLE)
	if readOnly {
		if has, err := d.has(cu.DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED); err != nil {
			return nil, err
		} else if !has {
			return nil, &driver.UnsupportedError{Feature: "pinning memory that is mapped read-only", Requires: "a newer driver, or a writable mapping"}
		}
		flags |= cu.MEMHOSTREGISTER_READ_ONLY
	}
	m := &HostMemory{dev: d, data: data, registered: true, readOnly: readOnly}
	make := func(c cu.Context) error {
		return check("cuMemHostRegister", c.MemHostRegister(at, uint64(len(data)), flags))
	}
	unregister := func(at unsafe.Pointer) cu.Result {
		r := cu.MemHostUnregister(at)
		runtime.KeepAlive(data)
		if !mustRetry(freed("cuMemHostUnregister", r)) {
			released()
		}
		return r
	}
	if err := create(&m.resource, d, "registered host memory", int64(len(data)), &at, make, "cuMemHostUnregister", unregister); err != nil {
		return nil, err
	}
	m.life.wide = true
	return m, nil
}

// PinMemory pins memory of the host that this project shares, such as a slab of package driver/host or an imported one,
// until Close. It borrows m, whose mapping remains until then, also if m is closed before. Memory that is not writable is
// pinned read-only ([Device.RegisterHostReadOnly]); writable memory cannot be sealed meanwhile.
func (d *Device) PinMemory(m driver.Mapped) (*HostMemory, error) {
	return made(d, "pin memory", func() (*HostMemory, error) {
		data, unpin, err := m.Pin(m.Writable())
		if err != nil {
			return nil, err
		}
		h, err := d.register(data, !m.Writable(), unpin)
		if err != nil {
			unpin()
		}
		return h, err
	})
}

// Data returns the memory, valid until Close, and nil after it. If the HostMemory becomes unreachable without Close,
// memory of [Device.AllocHost] is kept until the process ends ([driver.Leaks]), because a slice of it may be in use.
func (m *HostMemory) Data() []byte {
	if m.use() != nil {
		return nil
	}
	defer m.done()
	if !m.registered { // registered memory is only unpinned
		m.expose()
	}
	return m.data
}

// Close waits for the work that uses the memory, like [Memory.Close], and releases it. Work that was queued with
// package cu in the context of another device must be done before. A second Close returns nil.
func (m *HostMemory) Close() error { return m.dev.opError("close host memory", m.close()) }

// copyFromDevice copies len(p) bytes to host memory and returns when they have arrived.
func copyFromDevice(c cu.Context, p []byte, src cu.DevicePtr) error {
	return check("cuMemcpyDtoH", c.MemcpyDtoH(unsafe.Pointer(unsafe.SliceData(p)), src, uint64(len(p))))
}

// copyToDevice copies p from host memory. The context must be current. It returns when p can be changed, which for
// pageable memory is before the device has the bytes.
func copyToDevice(dst cu.DevicePtr, p []byte) error {
	return check("cuMemcpyHtoD", cu.MemcpyHtoD(dst, unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p))))
}

// queueToDevice queues a copy from pinned memory.
func queueToDevice(c cu.Context, dst cu.DevicePtr, p []byte, s cu.Stream) error {
	return check("cuMemcpyHtoDAsync", c.MemcpyHtoDAsync(dst, unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p)), s))
}

// queueFromDevice queues a copy to pinned memory.
func queueFromDevice(c cu.Context, p []byte, src cu.DevicePtr, s cu.Stream) error {
	return check("cuMemcpyDtoHAsync", c.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(p)), src, uint64(len(p)), s))
}
