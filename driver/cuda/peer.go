package cuda

import (
	"fmt"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// CanAccess reports whether kernels of d can access memory of the other device.
func (d *Device) CanAccess(other *Device) (bool, error) {
	var can int32
	err := check("cuDeviceCanAccessPeer", cu.DeviceCanAccessPeer(&can, d.handle, other.handle))
	return can != 0, d.opError("peer access", err)
}

// EnablePeer lets kernels of d access memory of cuMemAlloc in the other device's primary context. For virtual memory,
// use [AddressRange.SetAccess]. A second call returns nil. If the devices do not support it, the error is a
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
	return d.opError("peer access", d.withPeer(other, func(c cu.Context) error {
		r := c.CtxEnablePeerAccess(other.p.ctx, 0)
		if r != cu.SUCCESS && r != cu.ERROR_PEER_ACCESS_ALREADY_ENABLED {
			return check("cuCtxEnablePeerAccess", r)
		}
		other.p.peerOf(d.p)
		return nil
	}))
}

// withPeer runs fn with the context of d while neither context can be released.
func (d *Device) withPeer(other *Device, fn func(c cu.Context) error) (err error) {
	if err := other.hold(); err != nil {
		return fmt.Errorf("%s: %w", other.info, err)
	}
	defer func() { err = joinErrors([]error{err, other.p.drop()}) }()
	return d.Call(fn)
}

// peerAccess lists, for each context, the contexts whose kernels can access its memory of cuMemAlloc. An entry remains
// when the access ends, because kernels may still run.
var peerAccess struct {
	mu sync.Mutex
	to map[cu.Context][]*primary
}

// peerOf records that kernels of the other context can access memory of p.
func (p *primary) peerOf(other *primary) {
	peerAccess.mu.Lock()
	defer peerAccess.mu.Unlock()
	if peerAccess.to == nil {
		peerAccess.to = map[cu.Context][]*primary{}
	}
	list := slices.DeleteFunc(peerAccess.to[p.ctx], func(q *primary) bool { return q == other || q.released() })
	peerAccess.to[p.ctx] = append(list, other)
}

// peers returns the contexts whose kernels can access memory of p.
func (p *primary) peers() []*primary {
	peerAccess.mu.Lock()
	defer peerAccess.mu.Unlock()
	return slices.Clone(peerAccess.to[p.ctx])
}

// reachFrom gives a device access to virtual memory of another one, once. For other memory the driver copies between
// all devices without it. The caller keeps m open.
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
	m.life.reachedFrom(d.p)
	m.reached.Store(d.handle, struct{}{})
	return nil
}

// DisablePeer removes the access. It returns nil if there is none.
func (d *Device) DisablePeer(other *Device) error {
	return d.opError("peer access", d.withPeer(other, func(c cu.Context) error {
		r := c.CtxDisablePeerAccess(other.p.ctx)
		if r == cu.ERROR_PEER_ACCESS_NOT_ENABLED {
			return nil
		}
		return check("cuCtxDisablePeerAccess", r)
	}))
}
