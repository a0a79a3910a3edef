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
	if err := d.hold(); err != nil {
		return nil, d.opError("alloc host", err)
	}
	defer d.p.put()
	m, err := d.pinnedHost(bytes)
	if err != nil {
		return nil, d.opError("alloc host", err)
	}
	return m, nil
}

// pinnedHost is AllocHost for callers that hold a reference to the context.
func (d *Device) pinnedHost(bytes int64) (*HostMemory, error) {
	if bytes <= 0 || int64(int(bytes)) != bytes {
		return nil, invalid("%d bytes of pinned memory", bytes)
	}
	var at unsafe.Pointer
	err := d.p.do(func() error {
		return check("cuMemHostAlloc", cu.MemHostAlloc(&at, uint64(bytes), cu.MEMHOSTALLOC_PORTABLE))
	})
	if err != nil {
		return nil, err
	}
	m := &HostMemory{dev: d, data: unsafe.Slice((*byte)(at), int(bytes))}
	err = m.own(d.p, "pinned host memory", bytes, func() error { return check("cuMemFreeHost", cu.MemFreeHost(at)) })
	if err != nil {
		return nil, err
	}
	return m, nil
}

// RegisterHost pins existing memory, such as a mapped file, until Close. It borrows data, which must stay mapped until
// then. Memory of the Go heap stays reachable through the result. The driver pins whole pages.
func (d *Device) RegisterHost(data []byte) (*HostMemory, error) {
	m, err := d.registerHost(data, false)
	if err != nil {
		return nil, d.opError("register host memory", err)
	}
	return m, nil
}

// RegisterHostReadOnly is RegisterHost for memory that is mapped read-only, such as an imported slab, for which
// [Device.RegisterHost] fails. Copies to it are refused with [driver.ErrReadOnly]. If the device does not support it,
// the error is a [*driver.UnsupportedError].
func (d *Device) RegisterHostReadOnly(data []byte) (*HostMemory, error) {
	m, err := d.registerHost(data, true)
	if err != nil {
		return nil, d.opError("register host memory", err)
	}
	return m, nil
}

func (d *Device) registerHost(data []byte, readOnly bool) (*HostMemory, error) {
	if len(data) == 0 {
		return nil, invalid("no bytes to register")
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	defer d.p.put()
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
	err := d.p.do(func() error { return check("cuMemHostRegister", cu.MemHostRegister(at, uint64(len(data)), flags)) })
	if err != nil {
		return nil, err
	}
	m := &HostMemory{dev: d, data: data, registered: true, readOnly: readOnly}
	err = m.own(d.p, "registered host memory", int64(len(data)), func() error {
		err := check("cuMemHostUnregister", cu.MemHostUnregister(at))
		runtime.KeepAlive(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.life.wide = true
	return m, nil
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
