package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Access is the access that a device has to mapped memory.
type Access uint8

// The kinds of access.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1
	ReadWrite Access = 3
)

// HandleTypes is a bit set of the ways in which an [Allocation] can be shared. It is fixed when the allocation is made.
type HandleTypes uint32

// The handle types.
const (
	// FileHandle is a descriptor, for processes of the same host.
	FileHandle HandleTypes = HandleTypes(cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	// FabricHandle is 64 bytes, for processes of the same NVLink domain.
	FabricHandle HandleTypes = HandleTypes(cu.MEM_HANDLE_TYPE_FABRIC)
)

// allocationProp describes pinned memory on a device.
func allocationProp(h cu.Device, types HandleTypes) cu.MemAllocationProp {
	p := cu.MemAllocationProp{Type: cu.MEM_ALLOCATION_TYPE_PINNED, RequestedHandleTypes: cu.MemAllocationHandleType(types)}
	p.Location.Type = cu.MEM_LOCATION_TYPE_DEVICE
	*p.Location.Id() = int32(h)
	return p
}

// Allocation is memory of a device without an address. Use an [AddressRange] to map it. The bytes exist while any
// process maps them or holds a handle.
type Allocation struct {
	resource
	dev    *Device
	handle cu.MemGenericAllocationHandle
	bytes  int64 // 0 if unknown, after an import
	// The driver refuses to export an imported allocation. These make handles of it.
	file *os.File  // a duplicate of the imported descriptor
	data *[64]byte // the imported fabric handle
}

// Granularity returns the granularity in bytes: all sizes of allocations, and all addresses and sizes of mappings, are
// multiples of it. If recommended is true, it is the best one for speed, otherwise the minimum.
func (d *Device) Granularity(types HandleTypes, recommended bool) (int64, error) {
	option := cu.MEM_ALLOC_GRANULARITY_MINIMUM
	if recommended {
		option = cu.MEM_ALLOC_GRANULARITY_RECOMMENDED
	}
	g, err := granularity(d.handle, types, option)
	return g, d.opError("granularity", err)
}

// granularity may depend on how the memory is shared.
func granularity(h cu.Device, types HandleTypes, option cu.MemAllocationGranularity_flags) (int64, error) {
	prop := allocationProp(h, types)
	var g uint64
	err := fabricError(types, check("cuMemGetAllocationGranularity", cu.MemGetAllocationGranularity(&g, &prop, option)))
	return int64(g), err
}

// handleTypes returns the types for memory that is shared by a kind of handle. It returns 0 for legacy memory.
func handleTypes(kind driver.HandleKind) HandleTypes {
	switch kind {
	case driver.CUDAFD:
		return FileHandle
	case driver.CUDAFabric:
		return FabricHandle
	}
	return 0
}

// fabricError adds what is missing if the driver refuses fabric handles on a device that reports support for them. The
// driver returns "not permitted" if this user may open no IMEX channel, and "not supported" if there is no fabric.
func fabricError(types HandleTypes, err error) error {
	var e *Error
	if types&FabricHandle == 0 || !errors.As(err, &e) || e.Code != cu.ERROR_NOT_PERMITTED && e.Code != cu.ERROR_NOT_SUPPORTED {
		return err
	}
	return &driver.UnsupportedError{Feature: "sharing by fabric handles",
		Reason: err.Error(), Requires: "an NVLink fabric, and an IMEX channel that this user may open (/dev/nvidia-caps-imex-channels)"}
}

// CreateAllocation returns an allocation of the given size, which must be a multiple of [Device.Granularity]. The
// caller owns it. The memory is not cleared.
func (d *Device) CreateAllocation(bytes int64, types HandleTypes) (*Allocation, error) {
	return made(d, "create allocation", func() (*Allocation, error) { return d.createAllocation(bytes, types) })
}

func (d *Device) createAllocation(bytes int64, types HandleTypes) (*Allocation, error) {
	if bytes <= 0 {
		return nil, invalid("an allocation of %d bytes", bytes)
	}
	a := &Allocation{dev: d, bytes: bytes}
	prop := allocationProp(d.handle, types)
	return a, d.makeAllocation(a, func(c cu.Context) error {
		return fabricError(types, check("cuMemCreate", c.MemCreate(&a.handle, uint64(bytes), &prop, 0)))
	})
}

// makeAllocation calls make, which sets a.handle, and makes a responsible for the handle and for a.file.
func (d *Device) makeAllocation(a *Allocation, make func(c cu.Context) error) error {
	if err := make(d.p.ctx); err != nil {
		return err
	}
	h, file := a.handle, a.file
	return a.own(d.p, "allocation", a.bytes, func() error {
		err := freed("cuMemRelease", cu.MemRelease(h))
		if file != nil && !mustRetry(err) {
			err = joinErrors([]error{err, file.Close()})
		}
		return err
	})
}

// ImportFile returns an allocation that another process exported as a descriptor. The caller owns it. ImportFile
// borrows f, and checks that it is memory of this device. The driver does not report the allocation's size, but mapping
// fails if the allocation is too small.
func (d *Device) ImportFile(f *os.File) (*Allocation, error) {
	return made(d, "import", func() (*Allocation, error) { return d.importFile(f) })
}

func (d *Device) importFile(f *os.File) (*Allocation, error) {
	a, err := d.importHandle(f)
	if err != nil {
		return nil, err
	}
	return a, d.verify(a)
}

// importHandle imports a descriptor of any kind of memory.
func (d *Device) importHandle(f *os.File) (*Allocation, error) {
	own, err := duplicateFile(f)
	if err != nil {
		return nil, err
	}
	a := &Allocation{dev: d, file: own}
	// Fd would make the descriptor blocking. The file is not closed during the call.
	conn, err := own.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	made := false // then a closes own
	var importErr error
	err = conn.Control(func(fd uintptr) {
		importErr = d.makeAllocation(a, func(c cu.Context) error {
			err := check("cuMemImportFromShareableHandle",
				c.MemImportFromShareableHandle(&a.handle, fd, cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
			made = err == nil
			return err
		})
	})
	if err = errors.Join(err, importErr); err != nil {
		if !made {
			err = errors.Join(err, own.Close())
		}
		return nil, err
	}
	return a, nil
}

// verify checks that an imported allocation is pinned memory of this device, and closes it if not.
func (d *Device) verify(a *Allocation) error {
	var prop cu.MemAllocationProp
	err := check("cuMemGetAllocationPropertiesFromHandle", d.p.ctx.MemGetAllocationPropertiesFromHandle(&prop, a.handle))
	if err == nil && (prop.Type != cu.MEM_ALLOCATION_TYPE_PINNED || prop.Location.Type != cu.MEM_LOCATION_TYPE_DEVICE ||
		*prop.Location.Id() != int32(d.handle)) {
		err = fmt.Errorf("%w: the descriptor is not memory of %s", driver.ErrHandle, d.info)
	}
	if err != nil {
		return joinErrors([]error{err, a.discard()})
	}
	return nil
}

// Bytes returns the size. It is 0 for an imported allocation, because the driver does not report its size.
func (a *Allocation) Bytes() int64 { return a.bytes }

// Close releases the handle. Mappings remain. A second Close returns nil.
func (a *Allocation) Close() error { return a.dev.opError("release allocation", a.close()) }

// AddressRange is a range of device addresses into which allocations are mapped.
type AddressRange struct {
	resource
	dev   *Device
	base  cu.DevicePtr
	bytes int64
	state *mappings
}

// mappings holds the mappings of a range. It is separate from the range because the range's cleanup needs it.
type mappings struct {
	base cu.DevicePtr

	mu    sync.Mutex
	spans []span
}

type span struct {
	offset, bytes int64
	leaving       bool // an Unmap is waiting for the work that uses it
	failed        bool // cuMemUnmap has failed
}

// leave finds the mapping at offset and reserves it for one Unmap.
func (m *mappings) leave(offset int64) (span, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.spans, func(s span) bool { return s.offset == offset && !s.leaving })
	if i < 0 {
		return span{}, invalid("nothing is mapped at offset %d", offset)
	}
	m.spans[i].leaving = true
	return m.spans[i], nil
}

// left ends the reservation of leave.
func (m *mappings) left(offset int64, unmapped, tried bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.spans, func(s span) bool { return s.offset == offset })
	if unmapped {
		m.spans = slices.Delete(m.spans, i, i+1)
	} else {
		m.spans[i].leaving, m.spans[i].failed = false, m.spans[i].failed || tried
	}
}

func (m *mappings) add(s span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spans = append(m.spans, s)
}

// ReserveAddresses returns a range of the given size, which must be a multiple of [Device.Granularity]. The caller owns
// it. Its address is a multiple of align, which must be a power of two or 0.
func (d *Device) ReserveAddresses(bytes, align int64) (*AddressRange, error) {
	return made(d, "reserve addresses", func() (*AddressRange, error) { return d.reserve(bytes, align) })
}

func (d *Device) reserve(bytes, align int64) (*AddressRange, error) {
	if bytes <= 0 || align < 0 {
		return nil, invalid("a range of %d bytes aligned to %d", bytes, align)
	}
	r := &AddressRange{dev: d, bytes: bytes, state: &mappings{}}
	if err := check("cuMemAddressReserve", d.p.ctx.MemAddressReserve(&r.base, uint64(bytes), uint64(align), 0, 0)); err != nil {
		return nil, err
	}
	r.state.base = r.base
	state := r.state
	return r, r.own(d.p, "address range", bytes, func() error { return state.free(bytes) })
}

// free unmaps everything and frees the addresses. It needs no lock because the range is not in use. If it fails, it
// continues at the next call.
func (m *mappings) free(bytes int64) error {
	var lost []error
	for len(m.spans) > 0 {
		s := m.spans[0]
		err := freed("cuMemUnmap", cu.MemUnmap(m.base+cu.DevicePtr(s.offset), uint64(s.bytes)))
		if mustRetry(err) {
			return err
		}
		lost = append(lost, err)
		m.spans = m.spans[1:]
	}
	return joinErrors(append(lost, freed("cuMemAddressFree", cu.MemAddressFree(m.base, uint64(bytes)))))
}

// Base returns the first address. It is valid until Close, and 0 after it.
func (r *AddressRange) Base() cu.DevicePtr {
	if r.use() != nil {
		return 0
	}
	defer r.done()
	r.expose()
	return r.base
}

// Bytes returns the size of the range.
func (r *AddressRange) Bytes() int64 { return r.bytes }

// Map maps the first bytes of the allocation, which it borrows, at offset in the range. They cannot be accessed before
// [AddressRange.SetAccess]. offset and bytes must be multiples of [Device.Granularity], and the range must be unmapped
// there. Map fails if the allocation is smaller than bytes.
func (r *AddressRange) Map(offset int64, a *Allocation, bytes int64) error {
	return r.dev.opError("map", r.mapAllocation(offset, a, bytes))
}

func (r *AddressRange) mapAllocation(offset int64, a *Allocation, bytes int64) error {
	if offset < 0 || bytes <= 0 || offset > r.bytes || bytes > r.bytes-offset {
		return invalid("%d bytes at %d in a range of %d", bytes, offset, r.bytes)
	}
	if err := a.use(); err != nil {
		return err
	}
	defer a.done()
	return r.call(func(c cu.Context) error {
		err := check("cuMemMap", c.MemMap(r.base+cu.DevicePtr(offset), uint64(bytes), 0, a.handle, 0))
		if err == nil {
			r.state.add(span{offset: offset, bytes: bytes})
		}
		return err
	})
}

// Unmap removes the mapping at offset. If an address of the range was exposed, it waits for all work of the devices
// that have access. During a capture that forbids the wait, it fails with [ErrCapturing] and the mapping remains. Unmap
// can be repeated after an error.
func (r *AddressRange) Unmap(offset int64) error {
	return r.dev.opError("unmap", r.locked(func() error { return r.unmap(offset) }))
}

func (r *AddressRange) unmap(offset int64) error {
	s, err := r.state.leave(offset)
	if err != nil {
		return err
	}
	unmapped, tried := false, false
	defer func() { r.state.left(offset, unmapped, tried) }()
	err = relaxed(func() error {
		if err := r.life.wait(r.p); err != nil {
			return err
		}
		tried = true
		err := freed("cuMemUnmap", cu.MemUnmap(r.base+cu.DevicePtr(offset), uint64(s.bytes)))
		unmapped = !mustRetry(err)
		if s.failed && gone(err) { // the earlier attempt has removed the mapping, although it failed
			return nil
		}
		return err
	})
	if errors.Is(err, ErrCapturing) {
		return fmt.Errorf("%w: unmap when the capture has ended", err)
	}
	return err
}

// SetAccess sets the access of device dev to bytes at offset, which must be a sequence of whole mappings. It applies to
// this process only: an exporter cannot restrict the access of an importer.
func (r *AddressRange) SetAccess(dev *Device, offset, bytes int64, access Access) error {
	return r.dev.opError("set access", r.setAccess(dev, offset, bytes, access))
}

func (r *AddressRange) setAccess(dev *Device, offset, bytes int64, access Access) error {
	if offset < 0 || bytes <= 0 || offset > r.bytes || bytes > r.bytes-offset {
		return invalid("%d bytes at %d in a range of %d", bytes, offset, r.bytes)
	}
	return r.call(func(c cu.Context) error {
		desc := cu.MemAccessDesc{Flags: cu.MemAccess_flags(access)}
		desc.Location.Type = cu.MEM_LOCATION_TYPE_DEVICE
		*desc.Location.Id() = int32(dev.handle)
		if dev.p != r.p {
			r.life.reachedFrom(dev.p)
		}
		return check("cuMemSetAccess", c.MemSetAccess(r.base+cu.DevicePtr(offset), uint64(bytes), &desc, 1))
	})
}

// Close waits for the work that may use the addresses, unmaps all memory and frees the addresses. It waits, and is
// deferred during a capture, like [Memory.Close]. A second Close returns nil.
func (r *AddressRange) Close() error { return r.dev.opError("free addresses", r.close()) }
