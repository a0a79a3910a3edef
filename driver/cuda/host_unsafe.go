package cuda

import (
	"runtime"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// HostMemory is host memory that the device copies from and to by itself, without the driver's staging: pinned memory.
type HostMemory struct {
	resource
	dev        *Device
	data       []byte
	registered bool // the caller's
	readOnly   bool // mapped so
}

// AllocHost returns owned pinned memory. It is a scarce thing: it cannot be swapped out.
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

// pinnedHost needs a reference to the context held.
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
	err = m.own(d.p, "pinned host memory", bytes, func() error {
		cu.CtxSynchronize() // copies under way; what it reports is theirs
		return check("cuMemFreeHost", cu.MemFreeHost(at))
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// RegisterHost pins memory that there is, such as a mapped file, until Close. It borrows data, which must stay mapped
// until then; memory of the Go heap stays because the result refers to it. The driver pins whole pages.
func (d *Device) RegisterHost(data []byte) (*HostMemory, error) {
	m, err := d.registerHost(data, false)
	if err != nil {
		return nil, d.opError("register host memory", err)
	}
	return m, nil
}

// RegisterHostReadOnly is RegisterHost for memory that is mapped read-only, such as an imported slab:
// [Device.RegisterHost] fails for that. What copies to it is refused with [driver.ErrReadOnly]. A device without the
// feature is an [*driver.UnsupportedError].
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
		cu.CtxSynchronize()
		err := check("cuMemHostUnregister", cu.MemHostUnregister(at))
		runtime.KeepAlive(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Data is the memory itself, valid until Close; nil after it. Where the HostMemory is forgotten instead, memory of
// [Device.AllocHost] stays until the process ends ([driver.Leaks]): a slice of it may be in use.
func (m *HostMemory) Data() []byte {
	if m.use() != nil {
		return nil
	}
	defer m.done()
	if !m.registered { // which is not given back, only unpinned
		m.expose()
	}
	return m.data
}

// Close waits for all work of the context and gives the memory back. A second Close is nil.
func (m *HostMemory) Close() error { return m.dev.opError("close host memory", m.close()) }
