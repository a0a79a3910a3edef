package cuda

import (
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Multicast is an object of several devices at one address: kernels write to the memory of all devices, and reduce from
// it, with multimem instructions. Other accesses to the address are undefined. It needs CUDA 12.1, NVLink between the
// devices, and [Properties.Multicast].
//
// To use one, bind memory of each device, map [Multicast.Allocation] with an [AddressRange], and set the access of each
// device.
type Multicast struct {
	a     *Allocation
	bytes int64
}

func multicastProp(devices int, bytes int64, types HandleTypes) cu.MulticastObjectProp {
	return cu.MulticastObjectProp{NumDevices: uint32(devices), Size: uint64(bytes), HandleTypes: uint64(types)}
}

// MulticastGranularity returns the granularity in bytes of multicast objects of a number of devices: sizes and offsets are
// multiples of it. If recommended is true, it is the best one for speed, otherwise the minimum.
func (d *Device) MulticastGranularity(devices int, types HandleTypes, recommended bool) (int64, error) {
	option := cu.MULTICAST_GRANULARITY_MINIMUM
	if recommended {
		option = cu.MULTICAST_GRANULARITY_RECOMMENDED
	}
	prop := multicastProp(devices, 1, types)
	var g uint64
	err := d.invoke("cuMulticastGetGranularity", func(c cu.Context) cu.Result { return c.MulticastGetGranularity(&g, &prop, option) })
	return int64(g), d.opError("multicast granularity", err)
}

// NewMulticast returns a multicast object for a number of devices, which the caller owns. d and the devices of others are
// its first members. If others are fewer, other processes add theirs ([Allocation.ExportFile], [Device.ImportMulticast]).
// bytes must be a multiple of [Device.MulticastGranularity].
func (d *Device) NewMulticast(devices int, bytes int64, types HandleTypes, others ...*Device) (*Multicast, error) {
	m, err := made(d, "new multicast", func() (*Multicast, error) {
		if bytes <= 0 || devices < 1+len(others) {
			return nil, invalid("%d bytes for %d devices", bytes, devices)
		}
		a := &Allocation{dev: d, bytes: bytes}
		prop := multicastProp(devices, bytes, types)
		err := d.makeAllocation(a, func(c cu.Context) error {
			return fabricError(types, check("cuMulticastCreate", c.MulticastCreate(&a.handle, &prop)))
		})
		return &Multicast{a: a, bytes: bytes}, err
	})
	if err != nil {
		return nil, err
	}
	for _, member := range append([]*Device{d}, others...) {
		if err := m.AddDevice(member); err != nil {
			return nil, errors.Join(err, m.a.discard())
		}
	}
	return m, nil
}

// ImportMulticast returns a multicast object of another process, to which d is added. The caller owns it. bytes is the
// size with which it was made, which the driver does not report. It borrows f.
func (d *Device) ImportMulticast(f *os.File, bytes int64) (*Multicast, error) {
	m, err := made(d, "import multicast", func() (*Multicast, error) {
		a, err := d.importHandle(f)
		return &Multicast{a: a, bytes: bytes}, err
	})
	if err != nil {
		return nil, err
	}
	if err := m.AddDevice(d); err != nil {
		return nil, errors.Join(err, m.a.discard())
	}
	return m, nil
}

// Allocation returns the object for [AddressRange.Map] and [Allocation.ExportFile], borrowed.
func (m *Multicast) Allocation() *Allocation { return m.a }

// Bytes returns the size of the object.
func (m *Multicast) Bytes() int64 { return m.bytes }

// AddDevice makes a device a member. All members must be added before memory is bound.
func (m *Multicast) AddDevice(d *Device) error {
	return m.a.dev.opError("add device", m.a.call(func(c cu.Context) error {
		return check("cuMulticastAddDevice", c.MulticastAddDevice(m.a.handle, d.handle))
	}))
}

// Bind binds bytes of an allocation, from offset from, at offset at of the object. The allocation must be of a member,
// which has no memory bound there. The object keeps the memory alive until it is unbound or closed. Bind may wait until
// all members of other processes are added.
func (m *Multicast) Bind(at int64, a *Allocation, from, bytes int64) error {
	return m.a.dev.opError("bind", withAll([]*resource{&m.a.resource, &a.resource}, func() error {
		if err := m.checkRange(at, bytes); err != nil || from < 0 {
			return errors.Join(err, errIf(from < 0, invalid("offset %d", from)))
		}
		return check("cuMulticastBindMem",
			m.a.p.ctx.MulticastBindMem(m.a.handle, uint64(at), a.handle, uint64(from), uint64(bytes), 0))
	}))
}

func (m *Multicast) checkRange(at, bytes int64) error {
	if at < 0 || bytes <= 0 || at > m.bytes || bytes > m.bytes-at {
		return invalid("%d bytes at %d of a multicast object of %d", bytes, at, m.bytes)
	}
	return nil
}

// Unbind waits for all work of the member d in its context, and removes its memory that was bound at offset at. During a
// capture that forbids the wait, it fails with [ErrCapturing].
func (m *Multicast) Unbind(d *Device, at, bytes int64) error {
	return m.a.dev.opError("unbind", m.a.locked(func() error {
		if err := m.checkRange(at, bytes); err != nil {
			return err
		}
		err := relaxed(func() error { return d.p.waitIfOpen(d.p.waitAll) })
		if errors.Is(err, ErrCapturing) {
			return fmt.Errorf("%w: unbind when the capture has ended", ErrCapturing)
		}
		if err != nil {
			return err
		}
		return check("cuMulticastUnbind", cu.MulticastUnbind(m.a.handle, d.handle, uint64(at), uint64(bytes)))
	}))
}

// Close releases the object. Mappings and bound memory remain until the mappings are closed. A second Close returns nil.
func (m *Multicast) Close() error { return m.a.Close() }
