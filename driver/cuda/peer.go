package cuda

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// CanAccess reports whether kernels of d can reach memory of the other device.
func (d *Device) CanAccess(other *Device) (bool, error) {
	var can int32
	err := check("cuDeviceCanAccessPeer", cu.DeviceCanAccessPeer(&can, d.handle, other.handle))
	return can != 0, d.opError("peer access", err)
}

// EnablePeer lets kernels of d reach memory that the other device's primary context has with cuMemAlloc. Virtual memory
// has its own rule: [AddressRange.SetAccess]. Doing it twice is nil. Where the devices cannot, the error is an
// [*driver.UnsupportedError].
func (d *Device) EnablePeer(other *Device) error {
	can, err := d.CanAccess(other)
	if err != nil {
		return err
	}
	if !can {
		return d.opError("peer access", &driver.UnsupportedError{Feature: fmt.Sprintf("access to %s", other.info),
			Requires: "a connection between the two devices (NVLink or PCIe peer to peer)"})
	}
	return d.opError("peer access", d.do(func() error {
		r := cu.CtxEnablePeerAccess(other.p.ctx, 0)
		if r == cu.ERROR_PEER_ACCESS_ALREADY_ENABLED {
			return nil
		}
		return check("cuCtxEnablePeerAccess", r)
	}))
}

// reachFrom gives a device access to virtual memory of another one, once. Copies of other memory go by themselves
// between all devices. The caller keeps m from being closed.
func (m *Memory) reachFrom(d *Device) error {
	if m.pages == nil || m.dev.handle == d.handle {
		return nil
	}
	if _, done := m.reached.Load(d.handle); done {
		return nil
	}
	if can, err := d.CanAccess(m.dev); err != nil {
		return err
	} else if !can {
		return &driver.UnsupportedError{Feature: fmt.Sprintf("a copy between %s and %s", d.info, m.dev.info),
			Requires: "a connection between the two devices (NVLink or PCIe peer to peer), or a copy by way of the host"}
	}
	access := ReadOnly
	if m.writable {
		access = ReadWrite
	}
	if err := m.pages.setAccess(d, 0, m.pages.bytes, access); err != nil {
		return err
	}
	m.reached.Store(d.handle, struct{}{})
	return nil
}

// DisablePeer takes the access away. Where there is none, that is nil.
func (d *Device) DisablePeer(other *Device) error {
	return d.opError("peer access", d.do(func() error {
		r := cu.CtxDisablePeerAccess(other.p.ctx)
		if r == cu.ERROR_PEER_ACCESS_NOT_ENABLED {
			return nil
		}
		return check("cuCtxDisablePeerAccess", r)
	}))
}
