package cuda

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Managed is memory that host and devices access by one address. The driver moves its pages to where they are used. It
// cannot be shared with other processes.
//
// The host must not access the memory while a kernel of a device without concurrent access
// ([Properties.ConcurrentManaged]) runs.
type Managed struct{ *Memory }

// AllocManaged returns managed memory, which the caller owns. Its contents are undefined. If the device does not support
// it, the error is a [*driver.UnsupportedError]. It needs CUDA 6.0.
func (d *Device) AllocManaged(bytes int64) (*Managed, error) {
	m, err := made(d, "alloc managed", func() (*Memory, error) {
		if bytes <= 0 || int64(int(bytes)) != bytes {
			return nil, invalid("%d bytes", bytes)
		}
		if has, err := d.has(cu.DEVICE_ATTRIBUTE_MANAGED_MEMORY); err != nil {
			return nil, err
		} else if !has {
			return nil, &driver.UnsupportedError{Feature: "managed memory on " + d.info.String(), Requires: "a device with unified memory"}
		}
		m := &Memory{dev: d, bytes: bytes, writable: true}
		make := func(c cu.Context) error {
			return check("cuMemAllocManaged", c.MemAllocManaged(&m.ptr, uint64(bytes), cu.MEM_ATTACH_GLOBAL))
		}
		return m, create(&m.resource, d, "managed memory", bytes, &m.ptr, make, "cuMemFree", cu.MemFree)
	})
	if err != nil {
		return nil, err
	}
	m.life.wide = true // the host and all devices use the address
	return &Managed{m}, nil
}

// Data returns the memory for the host, valid until Close, and nil after it.
func (m *Managed) Data() []byte {
	p := m.Pointer()
	if p == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(hostAddress(p)), m.bytes)
}

// hostAddress converts an address that the host can access too. It is not of the Go heap.
func hostAddress(p cu.DevicePtr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// Location is a place for managed memory, and for access to it. The zero value is no place.
type Location struct{ value cu.MemLocation }

// Location returns the memory of the device as a location.
func (d *Device) Location() Location { return Location{cu.DeviceLocation(d.handle)} }

// HostLocation is the memory of the host.
var HostLocation = Location{cu.MemLocation{Type: cu.MEM_LOCATION_TYPE_HOST}}

// NUMALocation returns the memory of a NUMA node of the host as a location. It needs CUDA 12.2.
func NUMALocation(node int) Location {
	l := cu.MemLocation{Type: cu.MEM_LOCATION_TYPE_HOST_NUMA}
	*l.Id() = int32(node)
	return Location{l}
}

// Advice tells the driver how managed memory will be used. It changes speed, not results.
type Advice uint8

// The kinds of advice. Each has an opposite that removes it.
const (
	// ReadMostly lets the driver keep read-only copies at each place that reads. Its location is ignored.
	ReadMostly = Advice(cu.MEM_ADVISE_SET_READ_MOSTLY)
	// NotReadMostly removes ReadMostly.
	NotReadMostly = Advice(cu.MEM_ADVISE_UNSET_READ_MOSTLY)
	// PreferLocation keeps the pages at the location, and other places access them remotely.
	PreferLocation = Advice(cu.MEM_ADVISE_SET_PREFERRED_LOCATION)
	// NoPreferredLocation removes PreferLocation. Its location is ignored.
	NoPreferredLocation = Advice(cu.MEM_ADVISE_UNSET_PREFERRED_LOCATION)
	// AccessedBy keeps the pages mapped for the location, wherever they are, which avoids faults.
	AccessedBy = Advice(cu.MEM_ADVISE_SET_ACCESSED_BY)
	// NotAccessedBy removes AccessedBy for the location.
	NotAccessedBy = Advice(cu.MEM_ADVISE_UNSET_ACCESSED_BY)
)

// Advise gives advice for the pages of n bytes at off. at is the location for the kinds of advice that name one. Devices
// among the locations need concurrent access ([Properties.ConcurrentManaged]). It needs CUDA 8.0, or 12.2 for NUMA nodes.
func (m *Managed) Advise(off, n int64, advice Advice, at Location) error {
	return m.dev.opError("advise", m.call(func(c cu.Context) error {
		if err := m.inRange(off, n); err != nil || n == 0 {
			return err
		}
		if advice == ReadMostly || advice == NotReadMostly || advice == NoPreferredLocation {
			at = m.dev.Location() // the driver checks it although it does not use it
		}
		p := m.ptr + cu.DevicePtr(off)
		r := c.MemAdvise(p, uint64(n), cu.Mem_advise(advice), at.value)
		if r.Missing() {
			h, err := at.device()
			if err != nil {
				return err
			}
			r = c.MemAdvise_v1(p, uint64(n), cu.Mem_advise(advice), h)
		}
		return check("cuMemAdvise", r)
	}))
}

// device returns the location in the form of drivers before CUDA 12.2.
func (l Location) device() (cu.Device, error) {
	switch l.value.Type {
	case cu.MEM_LOCATION_TYPE_DEVICE:
		return cu.Device(*l.value.Id()), nil
	case cu.MEM_LOCATION_TYPE_HOST:
		return cu.Device(cu.DEVICE_CPU), nil
	case cu.MEM_LOCATION_TYPE_HOST_NUMA:
		return 0, &driver.UnsupportedError{Feature: "a NUMA node as location", Requires: "CUDA 12.2"}
	}
	return 0, invalid("no location")
}

// Prefetch queues a move of the pages of n bytes at off to a location. It borrows m. The device of the stream, and of the
// location, need concurrent access ([Properties.ConcurrentManaged]). It needs CUDA 8.0, or 12.2 for NUMA nodes.
func (s *Stream) Prefetch(m *Managed, off, n int64, to Location) error {
	if err := m.inRange(off, n); err != nil {
		return s.dev.opError("prefetch", err)
	}
	return s.dev.opError("prefetch", s.queue([]*resource{&m.resource}, func(c cu.Context) error {
		if n == 0 {
			return nil
		}
		p := m.ptr + cu.DevicePtr(off)
		r := c.MemPrefetchAsync(p, uint64(n), to.value, 0, s.handle)
		if r.Missing() {
			h, err := to.device()
			if err != nil {
				return err
			}
			r = c.MemPrefetchAsync_v1(p, uint64(n), h, s.handle)
		}
		return check("cuMemPrefetchAsync", r)
	}))
}

// LastPrefetch returns the location of the last [Stream.Prefetch] of all pages of n bytes at off. ok is false if there
// was none, or if it differs between pages. It needs CUDA 8.0; a NUMA node is reported as the host.
func (m *Managed) LastPrefetch(off, n int64) (at Location, ok bool, err error) {
	id := new(int32)
	err = m.call(func(c cu.Context) error {
		if err := m.inRange(off, n); err != nil {
			return err
		}
		return check("cuMemRangeGetAttribute", c.MemRangeGetAttribute(unsafe.Pointer(id), 4,
			cu.MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.ptr+cu.DevicePtr(off), uint64(n)))
	})
	switch {
	case err != nil || cu.Device(*id) == cu.DEVICE_INVALID:
		return Location{}, false, m.dev.opError("last prefetch", err)
	case cu.Device(*id) == cu.DEVICE_CPU:
		return HostLocation, true, nil
	}
	return Location{cu.DeviceLocation(cu.Device(*id))}, true, nil
}
