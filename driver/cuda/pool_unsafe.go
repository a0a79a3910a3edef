package cuda

import (
	"errors"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Pool is memory that the driver keeps for allocations in stream order. A pool of [Device.NewSharedPool] can be shared
// with other processes, one allocation at a time. For whole slabs use [Device.Alloc]. It needs CUDA 11.2.
type Pool struct {
	resource
	dev    *Device
	handle cu.MemoryPool
}

// NewPool returns a new pool of the device, which the caller owns.
func (d *Device) NewPool() (*Pool, error) { return d.NewSharedPool(0) }

// NewSharedPool returns a new pool whose allocations other processes can map, by handles of the given types. The caller
// owns it.
func (d *Device) NewSharedPool(types HandleTypes) (*Pool, error) {
	props := cu.MemPoolProps{AllocType: cu.MEM_ALLOCATION_TYPE_PINNED, HandleTypes: cu.MemAllocationHandleType(types)}
	props.Location.Type = cu.MEM_LOCATION_TYPE_DEVICE
	*props.Location.Id() = int32(d.handle)
	return made(d, "new pool", func() (*Pool, error) {
		p := &Pool{dev: d}
		make := func(c cu.Context) error {
			return fabricError(types, check("cuMemPoolCreate", c.MemPoolCreate(&p.handle, &props)))
		}
		return p, create(&p.resource, d, "pool", 0, &p.handle, make, "cuMemPoolDestroy", cu.MemPoolDestroy)
	})
}

// DefaultPool returns the device's default pool. Closing it does not affect the driver's pool.
func (d *Device) DefaultPool() (*Pool, error) {
	return made(d, "default pool", func() (*Pool, error) {
		p := &Pool{dev: d}
		make := func(c cu.Context) error {
			return check("cuDeviceGetDefaultMemPool", cu.DeviceGetDefaultMemPool(&p.handle, d.handle))
		}
		return p, create(&p.resource, d, "pool", 0, &p.handle, make, "", func(cu.MemoryPool) cu.Result { return cu.SUCCESS })
	})
}

// PoolUsage reports how many bytes a pool has reserved from the system and how many of them are allocated, each with
// its maximum so far.
type PoolUsage struct {
	// Reserved and ReservedHigh count the bytes that the pool holds.
	Reserved, ReservedHigh uint64
	// Used and UsedHigh count the bytes that are allocated from it.
	Used, UsedHigh uint64
}

// Usage returns the pool's current usage.
func (p *Pool) Usage() (PoolUsage, error) {
	var u PoolUsage
	err := p.call(func(c cu.Context) error {
		for _, a := range []struct {
			to   *uint64
			attr cu.MemPool_attribute
		}{
			{&u.Reserved, cu.MEMPOOL_ATTR_RESERVED_MEM_CURRENT}, {&u.ReservedHigh, cu.MEMPOOL_ATTR_RESERVED_MEM_HIGH},
			{&u.Used, cu.MEMPOOL_ATTR_USED_MEM_CURRENT}, {&u.UsedHigh, cu.MEMPOOL_ATTR_USED_MEM_HIGH},
		} {
			if err := check("cuMemPoolGetAttribute", c.MemPoolGetAttribute(p.handle, a.attr, unsafe.Pointer(a.to))); err != nil {
				return err
			}
		}
		return nil
	})
	return u, p.dev.opError("pool usage", err)
}

// SetReleaseThreshold sets how many unused bytes the pool keeps when the device is synchronised. The default is 0.
func (p *Pool) SetReleaseThreshold(bytes uint64) error {
	return p.dev.opError("pool threshold", p.call(func(c cu.Context) error {
		return check("cuMemPoolSetAttribute",
			c.MemPoolSetAttribute(p.handle, cu.MEMPOOL_ATTR_RELEASE_THRESHOLD, unsafe.Pointer(&bytes)))
	}))
}

// Trim releases unused memory to the system until the pool holds at most keep bytes.
func (p *Pool) Trim(keep uint64) error {
	return p.dev.opError("trim pool", p.call(func(c cu.Context) error {
		return check("cuMemPoolTrimTo", c.MemPoolTrimTo(p.handle, keep))
	}))
}

// Close waits for queued frees and destroys the pool. Close memory from the pool before it. A second Close returns nil.
func (p *Pool) Close() error { return p.dev.opError("close pool", p.close()) }

// Alloc returns memory from the pool, which the caller owns. It is not zeroed. Work that is queued in the stream later
// can use it. Close waits for the work that uses it and frees it; [Stream.Free] frees it in stream order.
func (s *Stream) Alloc(pool *Pool, bytes int64) (*Memory, error) {
	if bytes <= 0 {
		return nil, s.dev.opError("alloc from pool", invalid("%d bytes", bytes))
	}
	m := &Memory{dev: s.dev, bytes: bytes, writable: true, pooled: true}
	err := s.queue([]*resource{&pool.resource}, func(c cu.Context) error {
		err := check("cuMemAllocFromPoolAsync", c.MemAllocFromPoolAsync(&m.ptr, uint64(bytes), pool.handle, s.handle))
		if err != nil {
			return err
		}
		ptr := m.ptr
		if err := m.own(s.p, "memory", bytes, func() error { return freed("cuMemFree", cu.MemFree(ptr)) }); err != nil {
			return err
		}
		m.release.source = pool.life
		s.track.mark(m.life)
		return nil
	})
	if err != nil {
		return nil, s.dev.opError("alloc from pool", err)
	}
	return m, nil
}

// Free takes ownership of m, memory from a pool, and frees it in stream order, after the work of other streams that
// uses it. If Free fails, m stays open. If one of these streams captures, m is closed like by [Memory.Close].
func (s *Stream) Free(m *Memory) error {
	if !m.pooled {
		return s.dev.opError("free", invalid("the memory is not from a pool"))
	}
	return s.dev.opError("free", s.locked(func() error {
		if !m.life.begin() {
			return nil
		}
		if m.release.begun { // an earlier release has failed
			return m.finish(m.release.run())
		}
		return m.finish(m.release.settle(s.freeOrdered(m)))
	}))
}

// freeOrdered makes the stream wait for other streams that use m and queues the free. The context is current.
func (s *Stream) freeOrdered(m *Memory) error {
	freed := false
	err := relaxed(func() error {
		if capturing, err := s.track.isCapturing(); err != nil || capturing {
			return errors.Join(err, errIf(capturing, ErrCapturing))
		}
		last, _ := m.life.uses()
		for _, u := range last {
			if err := s.waitFor(u); err != nil {
				return err
			}
		}
		err := check("cuMemFreeAsync", cu.MemFreeAsync(m.ptr, s.handle))
		freed = err == nil
		s.track.mark(m.release.source)
		return err
	})
	if err != nil && !freed {
		return notReleased(err)
	}
	return err
}

// waitFor makes work that is queued later wait for a use in another stream.
func (s *Stream) waitFor(u lastUse) error {
	if u.stream == s.track || u.stream.completed(u.number) {
		return nil
	}
	return u.stream.p.waitIfOpen(func() error {
		e := new(cu.Event)
		if err := check("cuEventCreate", cu.EventCreate(e, cu.EVENT_DISABLE_TIMING)); err != nil {
			return err
		}
		defer destroyEvent(*e) // the driver keeps the event until the stream has waited
		if _, err := u.stream.record(*e); err != nil {
			return err
		}
		return check("cuStreamWaitEvent", cu.StreamWaitEvent(s.handle, *e, 0))
	})
}
