package cuda

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Pool is memory that the driver keeps for allocations in stream order. Nothing of it can be shared with other
// processes: what has to travel comes from [Device.Alloc].
type Pool struct {
	resource
	dev    *Device
	handle cu.MemoryPool
}

// NewPool returns an owned pool of the device.
func (d *Device) NewPool() (*Pool, error) {
	if err := d.hold(); err != nil {
		return nil, d.opError("new pool", err)
	}
	defer d.p.put()
	p := &Pool{dev: d}
	props := cu.MemPoolProps{AllocType: cu.MEM_ALLOCATION_TYPE_PINNED}
	props.Location.Type = cu.MEM_LOCATION_TYPE_DEVICE
	*props.Location.Id() = int32(d.handle)
	err := d.p.do(func() error { return check("cuMemPoolCreate", cu.MemPoolCreate(&p.handle, &props)) })
	if err != nil {
		return nil, d.opError("new pool", err)
	}
	h := p.handle
	if err := p.own(d.p, "pool", 0, func() error { return check("cuMemPoolDestroy", cu.MemPoolDestroy(h)) }); err != nil {
		return nil, d.opError("new pool", err)
	}
	return p, nil
}

// DefaultPool returns the device's own pool. Closing it does nothing to the driver's.
func (d *Device) DefaultPool() (*Pool, error) {
	if err := d.hold(); err != nil {
		return nil, d.opError("default pool", err)
	}
	defer d.p.put()
	p := &Pool{dev: d}
	err := check("cuDeviceGetDefaultMemPool", cu.DeviceGetDefaultMemPool(&p.handle, d.handle))
	if err == nil {
		err = p.own(d.p, "pool", 0, func() error { return nil })
	}
	if err != nil {
		return nil, d.opError("default pool", err)
	}
	return p, nil
}

// PoolUsage is how many bytes a pool has from the system, and how many of them are allocated; now and at most so far.
type PoolUsage struct {
	// Reserved and ReservedHigh are what the pool holds.
	Reserved, ReservedHigh uint64
	// Used and UsedHigh are what is allocated from it.
	Used, UsedHigh uint64
}

// Usage asks the driver.
func (p *Pool) Usage() (PoolUsage, error) {
	var u PoolUsage
	err := p.call(func() error {
		for _, a := range []struct {
			to   *uint64
			attr cu.MemPool_attribute
		}{
			{&u.Reserved, cu.MEMPOOL_ATTR_RESERVED_MEM_CURRENT}, {&u.ReservedHigh, cu.MEMPOOL_ATTR_RESERVED_MEM_HIGH},
			{&u.Used, cu.MEMPOOL_ATTR_USED_MEM_CURRENT}, {&u.UsedHigh, cu.MEMPOOL_ATTR_USED_MEM_HIGH},
		} {
			if err := check("cuMemPoolGetAttribute", cu.MemPoolGetAttribute(p.handle, a.attr, unsafe.Pointer(a.to))); err != nil {
				return err
			}
		}
		return nil
	})
	return u, p.dev.opError("pool usage", err)
}

// SetReleaseThreshold says how many unused bytes the pool keeps when the device is synchronised; the driver's choice is
// 0.
func (p *Pool) SetReleaseThreshold(bytes uint64) error {
	return p.dev.opError("pool threshold", p.call(func() error {
		return check("cuMemPoolSetAttribute",
			cu.MemPoolSetAttribute(p.handle, cu.MEMPOOL_ATTR_RELEASE_THRESHOLD, unsafe.Pointer(&bytes)))
	}))
}

// Trim gives unused memory back to the system until no more than keep bytes are held.
func (p *Pool) Trim(keep uint64) error {
	return p.dev.opError("trim pool", p.call(func() error {
		return check("cuMemPoolTrimTo", cu.MemPoolTrimTo(p.handle, keep))
	}))
}

// Close gives the pool back; memory from it must be closed before. A second Close is nil.
func (p *Pool) Close() error { return p.dev.opError("close pool", p.close()) }

// Alloc returns owned memory from the pool, not zeroed, which work queued in the stream from now on can use. Close
// frees it at once and waits for the device; [Stream.Free] frees it in stream order.
func (s *Stream) Alloc(pool *Pool, bytes int64) (*Memory, error) {
	if bytes <= 0 {
		return nil, s.dev.opError("alloc from pool", invalid("%d bytes", bytes))
	}
	m := &Memory{dev: s.dev, bytes: bytes, writable: true, pooled: true}
	err := s.with(&pool.resource, func() error {
		err := check("cuMemAllocFromPoolAsync", cu.MemAllocFromPoolAsync(&m.ptr, uint64(bytes), pool.handle, s.handle))
		if err != nil {
			return err
		}
		ptr := m.ptr
		return m.own(s.p, "memory", bytes, func() error {
			cu.CtxSynchronize() // what it reports is the work's
			return check("cuMemFree", cu.MemFree(ptr))
		})
	})
	if err != nil {
		return nil, s.dev.opError("alloc from pool", err)
	}
	return m, nil
}

// Free takes m, memory from a pool, and frees it when the stream gets there. Where it fails before that, m stays as it
// is.
func (s *Stream) Free(m *Memory) error {
	if !m.pooled {
		return s.dev.opError("free", invalid("the memory is not from a pool"))
	}
	return s.dev.opError("free", s.call(func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.owned == nil {
			return nil
		}
		if r := cu.MemFreeAsync(m.ptr, s.handle); r != cu.SUCCESS {
			return check("cuMemFreeAsync", r)
		}
		return m.disownLocked()
	}))
}
