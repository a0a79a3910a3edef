package cuda

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Memory is addressable memory of a device, from [Device.Alloc], [Device.Import], [Device.AllocLegacy],
// [Device.OpenIPC] or [Stream.Alloc]. It implements [driver.Addressable] and [driver.Loader]. It cannot
// be frozen, because on CUDA each importer chooses whether its mapping is writable.
//
// ReadAt and WriteAt are ordered after all work of the default stream and of streams that synchronise with it. The
// caller must wait for work of other streams. When they return, the copy is done, also for other processes.
type Memory struct {
	resource
	dev      *Device
	ptr      cu.DevicePtr
	bytes    int64
	writable bool
	// export makes a handle. It is nil if the memory cannot be shared.
	export func() (driver.Handle, error)
	// pages is the address range of virtual memory, nil for other memory. Access is set for each device separately.
	pages   *AddressRange
	reached sync.Map // cu.Device of another device that was given access
	// pooled memory can be freed in stream order.
	pooled bool
}

// AllocMemory is [Device.Alloc] that returns the type of this package.
func (d *Device) AllocMemory(bytes int64) (*Memory, error) {
	return made(d, "alloc", func() (*Memory, error) { return d.allocMemory(bytes) })
}

func (d *Device) allocMemory(bytes int64) (*Memory, error) {
	if bytes < 0 {
		return nil, invalid("%d bytes", bytes)
	}
	padded, ok := roundUp(max(bytes, 1), d.info.Granularity)
	if !ok {
		return nil, fmt.Errorf("%w: %d bytes", driver.ErrOutOfMemory, bytes)
	}
	var m *Memory
	var err error
	switch d.options.kind {
	case driver.CUDAIPC:
		m, err = d.allocLegacy(padded)
	case driver.CUDAFabric:
		m, err = d.allocShared(padded, FabricHandle)
	default:
		m, err = d.allocShared(padded, FileHandle)
	}
	if err != nil {
		return nil, fmt.Errorf("%d bytes: %w", bytes, d.explain(err))
	}
	m.bytes = bytes
	if err := m.zero(padded); err != nil {
		return nil, errors.Join(err, m.discard())
	}
	return m, nil
}

// allocShared makes virtual memory that can be exported.
func (d *Device) allocShared(bytes int64, types HandleTypes) (*Memory, error) {
	a, err := d.createAllocation(bytes, types)
	if err != nil {
		return nil, err
	}
	m, err := d.mapWhole(a, bytes, ReadWrite)
	if err != nil {
		return nil, err
	}
	m.export = a.exporter(types, 0)
	return m, nil
}

// mapWhole returns memory over the first bytes of a. It takes ownership of a, and closes it if it fails.
func (d *Device) mapWhole(a *Allocation, bytes int64, access Access) (_ *Memory, err error) {
	var back undo
	defer back.onError(&err)
	back.add(a.discard)
	r, err := d.reserve(bytes, 0)
	if err != nil {
		return nil, err
	}
	back.add(r.discard)
	if err := r.mapAllocation(0, a, bytes); err != nil {
		return nil, err
	}
	if err := r.setAccess(d, 0, bytes, access); err != nil {
		return nil, err
	}
	m := &Memory{dev: d, ptr: r.base, bytes: bytes, writable: access == ReadWrite, pages: r}
	release := func() error {
		err := r.close()
		if mustRetry(err) {
			return err
		}
		return joinErrors([]error{err, a.close()})
	}
	return m, m.own(d.p, "memory", bytes, release)
}

func (m *Memory) zero(padded int64) error {
	return m.callAndWait(func() error {
		if err := check("cuMemsetD8", cu.MemsetD8(m.ptr, 0, uint64(padded))); err != nil {
			return err
		}
		return check("cuStreamSynchronize", cu.StreamSynchronize(0)) // the fill is asynchronous to the host
	})
}

// Device returns the device that made the memory. The caller borrows it.
func (m *Memory) Device() driver.Device { return m.dev }

// Bytes returns the size that was requested, or that was checked on import.
func (m *Memory) Bytes() int64 { return m.bytes }

// Writable reports whether this mapping may be written.
func (m *Memory) Writable() bool { return m.writable }

// Pointer returns the address for calls of package cu. It is valid until Close, and 0 after it.
func (m *Memory) Pointer() cu.DevicePtr {
	if m.use() != nil {
		return 0
	}
	defer m.done()
	m.expose()
	return m.ptr
}

// ReadAt copies bytes to host memory. It implements [io.ReaderAt].
func (m *Memory) ReadAt(p []byte, off int64) (int, error) {
	if err := m.use(); err != nil {
		return 0, m.dev.opError("read", err)
	}
	defer m.done()
	if off < 0 {
		return 0, m.dev.opError("read", fmt.Errorf("%w: offset %d", driver.ErrRange, off))
	}
	n := int(min(int64(len(p)), max(m.bytes-off, 0)))
	if n > 0 {
		if err := copyFromDevice(m.p.ctx, p[:n], m.ptr+cu.DevicePtr(off)); err != nil {
			m.p.legacy.mark(m.life) // the copy may be unfinished
			return 0, m.dev.opError("read", err)
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt copies bytes from host memory. It implements [io.WriterAt]. A write past the end fails with [driver.ErrRange]
// and writes nothing. A write to read-only memory fails with [driver.ErrReadOnly].
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	if err := m.use(); err != nil {
		return 0, m.dev.opError("write", err)
	}
	defer m.done()
	if err := m.writableRange(off, int64(len(p))); err != nil {
		return 0, m.dev.opError("write", err)
	}
	if len(p) == 0 {
		return 0, nil
	}
	err := m.callAndWait(func() error {
		if err := copyToDevice(m.ptr+cu.DevicePtr(off), p); err != nil {
			return err
		}
		// A copy from pageable memory returns when the driver has the bytes, which is before the device has them.
		return check("cuStreamSynchronize", cu.StreamSynchronize(0))
	})
	if err != nil {
		return 0, m.dev.opError("write", err)
	}
	return len(p), nil
}

func (m *Memory) copyFrom(off int64, src *Memory, srcOff, n int64) error {
	return withAll([]*resource{&m.resource, &src.resource}, func() error {
		if err := m.checkCopy(off, src, srcOff, n); err != nil || n == 0 {
			return err
		}
		if err := src.reachFrom(m.dev); err != nil {
			return err
		}
		if src.p != m.p { // the source's device may still be writing it
			if err := check("cuStreamSynchronize", src.p.ctx.StreamSynchronize(0)); err != nil {
				src.p.legacy.mark(src.life)
				return err
			}
		}
		err := m.p.do(func() error {
			if err := check("cuMemcpyDtoD", cu.MemcpyDtoD(m.ptr+cu.DevicePtr(off), src.ptr+cu.DevicePtr(srcOff), uint64(n))); err != nil {
				return err
			}
			return check("cuStreamSynchronize", cu.StreamSynchronize(0)) // the copy is asynchronous to the host
		})
		if err != nil { // the copy may be unfinished
			m.p.legacy.mark(m.life)
			m.p.legacy.mark(src.life)
		}
		return err
	})
}

// checkCopy checks the ranges of a copy of n bytes of src to m.
func (m *Memory) checkCopy(off int64, src *Memory, srcOff, n int64) error {
	if err := m.writableRange(off, n); err != nil {
		return err
	}
	if err := src.inRange(srcOff, n); err != nil {
		return err
	}
	if m == src && off < srcOff+n && srcOff < off+n {
		return invalid("the %d bytes at %d and at %d overlap", n, srcOff, off)
	}
	return nil
}

// inRange checks that the memory contains n bytes at off.
func (m *Memory) inRange(off, n int64) error {
	if off < 0 || n < 0 || off > m.bytes || n > m.bytes-off {
		return fmt.Errorf("%w: %d bytes at %d in %d", driver.ErrRange, n, off, m.bytes)
	}
	return nil
}

func (m *Memory) writableRange(off, n int64) error {
	if !m.writable {
		return driver.ErrReadOnly
	}
	return m.inRange(off, n)
}

// Fill sets n bytes at off to value and returns when the device has done so.
func (m *Memory) Fill(off, n int64, value byte) error {
	if err := m.writableRange(off, n); err != nil {
		return m.dev.opError("fill", err)
	}
	return m.dev.opError("fill", m.callAndWait(func() error {
		if n == 0 {
			return nil
		}
		if err := check("cuMemsetD8", cu.MemsetD8(m.ptr+cu.DevicePtr(off), value, uint64(n))); err != nil {
			return err
		}
		return check("cuStreamSynchronize", cu.StreamSynchronize(0))
	}))
}

// Close waits for the work that uses the memory and releases it. That is the work queued by methods of this package, in
// streams of all devices. If the address was exposed, it is all work of the device and of the devices that have access.
// During a stream capture that forbids the wait, the release is deferred ([Device.Stats]) and Close returns nil. Other
// processes keep the bytes while they map them or hold a handle of kind cuda-fd or cuda-fabric. A second Close returns
// nil.
func (m *Memory) Close() error { return m.dev.opError("close memory", m.close()) }

// roundUp returns n rounded up to a multiple of to. ok is false if that overflows.
func roundUp(n, to int64) (int64, bool) {
	if n > math.MaxInt64-to {
		return 0, false
	}
	return (n + to - 1) / to * to, true
}
