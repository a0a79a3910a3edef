package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Access says what a device may do with mapped memory.
type Access uint8

// The kinds of access.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1
	ReadWrite Access = 3
)

// HandleTypes are ways in which an [Allocation] can be shared, or'ed together. They are fixed when it is made.
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

// Allocation is memory of a device without an address: map it with an [AddressRange]. The bytes live while anyone, in
// any process, has them mapped or holds a handle.
type Allocation struct {
	resource
	dev    *Device
	handle cu.MemGenericAllocationHandle
	bytes  int64 // 0 where it is not known: an import
}

// Granularity is what sizes of allocations, and addresses and sizes of mappings, are multiples of, in bytes.
// recommended asks for what is best for speed rather than for the least.
func (d *Device) Granularity(types HandleTypes, recommended bool) (int64, error) {
	option := cu.MEM_ALLOC_GRANULARITY_MINIMUM
	if recommended {
		option = cu.MEM_ALLOC_GRANULARITY_RECOMMENDED
	}
	g, err := granularity(d.handle, types, option)
	return g, d.opError("granularity", err)
}

// granularity may differ with how the memory is to be shared.
func granularity(h cu.Device, types HandleTypes, option cu.MemAllocationGranularity_flags) (int64, error) {
	prop := allocationProp(h, types)
	var g uint64
	err := fabricError(types, check("cuMemGetAllocationGranularity", cu.MemGetAllocationGranularity(&g, &prop, option)))
	return int64(g), err
}

// handleTypes are those with which memory is made to be shared by a kind of handle; none for legacy memory.
func handleTypes(kind driver.HandleKind) HandleTypes {
	switch kind {
	case driver.CUDAFD:
		return FileHandle
	case driver.CUDAFabric:
		return FabricHandle
	}
	return 0
}

// fabricError says what is missing where the driver refuses fabric handles on a device that says it has them: without
// an IMEX channel that this user may open it answers "not permitted", and without a fabric "not supported".
func fabricError(types HandleTypes, err error) error {
	var e *Error
	if types&FabricHandle == 0 || !errors.As(err, &e) || e.Code != cu.ERROR_NOT_PERMITTED && e.Code != cu.ERROR_NOT_SUPPORTED {
		return err
	}
	return &driver.UnsupportedError{Feature: "sharing by fabric handles",
		Reason: err.Error(), Requires: "an NVLink fabric, and an IMEX channel that this user may open (/dev/nvidia-caps-imex-channels)"}
}

// CreateAllocation returns an owned allocation of the given size, a multiple of [Device.Granularity]. Its bytes are
// whatever was there before.
func (d *Device) CreateAllocation(bytes int64, types HandleTypes) (*Allocation, error) {
	a, err := d.createAllocation(bytes, types)
	return a, d.opError("create allocation", err)
}

func (d *Device) createAllocation(bytes int64, types HandleTypes) (*Allocation, error) {
	if bytes <= 0 {
		return nil, invalid("an allocation of %d bytes", bytes)
	}
	a := &Allocation{dev: d, bytes: bytes}
	prop := allocationProp(d.handle, types)
	err := d.makeAllocation(a, func() error {
		return fabricError(types, check("cuMemCreate", cu.MemCreate(&a.handle, uint64(bytes), &prop, 0)))
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// makeAllocation calls create, which sets a.handle, and makes a responsible for the handle.
func (d *Device) makeAllocation(a *Allocation, create func() error) error {
	if err := d.hold(); err != nil {
		return err
	}
	defer d.p.put()
	if err := d.p.do(create); err != nil {
		return err
	}
	h := a.handle
	return a.own(d.p, "allocation", a.bytes, func() error { return check("cuMemRelease", cu.MemRelease(h)) })
}

// ImportFile returns an owned allocation that another process exported as a descriptor. It borrows f. What f is, is
// checked: it must be memory of this device. The size of the allocation cannot be asked for; mapping more of it than
// there is fails.
func (d *Device) ImportFile(f *os.File) (*Allocation, error) {
	a, err := d.importFile(f)
	return a, d.opError("import", err)
}

func (d *Device) importFile(f *os.File) (*Allocation, error) {
	a := &Allocation{dev: d}
	// SyscallConn keeps the descriptor open during the call; Fd would make it blocking besides.
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var importErr error
	err = conn.Control(func(fd uintptr) {
		importErr = d.makeAllocation(a, func() error {
			return check("cuMemImportFromShareableHandle",
				cu.MemImportFromShareableHandle(&a.handle, fd, cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrHandle, err) // the file is closed
	}
	if importErr != nil {
		return nil, importErr
	}
	if err := d.verify(a); err != nil {
		return nil, err
	}
	return a, nil
}

// verify refuses an imported allocation that is not pinned memory of this device, and closes it.
func (d *Device) verify(a *Allocation) error {
	var prop cu.MemAllocationProp
	err := check("cuMemGetAllocationPropertiesFromHandle", cu.MemGetAllocationPropertiesFromHandle(&prop, a.handle))
	if err == nil && (prop.Type != cu.MEM_ALLOCATION_TYPE_PINNED || prop.Location.Type != cu.MEM_LOCATION_TYPE_DEVICE ||
		*prop.Location.Id() != int32(d.handle)) {
		err = fmt.Errorf("%w: the descriptor is of memory elsewhere than on %s", driver.ErrHandle, d.info)
	}
	if err != nil {
		return joinErrors([]error{err, a.discard()})
	}
	return nil
}

// Bytes is the size; 0 for an imported allocation, whose size the driver does not tell.
func (a *Allocation) Bytes() int64 { return a.bytes }

// Close gives the handle back. Mappings stay. A second Close is nil.
func (a *Allocation) Close() error { return a.dev.opError("release allocation", a.close()) }

// AddressRange is a run of device addresses into which allocations are mapped.
type AddressRange struct {
	resource
	dev   *Device
	base  cu.DevicePtr
	bytes int64
	state *mappings
}

// mappings are the mappings of a range, by offset. The cleanup of a forgotten range needs them too, so they are apart.
// The range's lock guards them.
type mappings struct {
	base  cu.DevicePtr
	spans []span
}

type span struct{ offset, bytes int64 }

// ReserveAddresses returns an owned range of the given size, a multiple of [Device.Granularity], at an address that is
// a multiple of align, a power of two or 0.
func (d *Device) ReserveAddresses(bytes, align int64) (*AddressRange, error) {
	r, err := d.reserve(bytes, align)
	return r, d.opError("reserve addresses", err)
}

func (d *Device) reserve(bytes, align int64) (*AddressRange, error) {
	if bytes <= 0 || align < 0 {
		return nil, invalid("a range of %d bytes aligned to %d", bytes, align)
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	defer d.p.put()
	r := &AddressRange{dev: d, bytes: bytes, state: &mappings{}}
	err := d.p.do(func() error {
		return check("cuMemAddressReserve", cu.MemAddressReserve(&r.base, uint64(bytes), uint64(align), 0, 0))
	})
	if err != nil {
		return nil, err
	}
	r.state.base = r.base
	state := r.state
	err = r.own(d.p, "address range", bytes, func() error { return state.free(bytes) })
	if err != nil {
		return nil, err
	}
	return r, nil
}

// free unmaps everything and gives the addresses back. Unmapping does not wait for work that uses the memory, so this
// does; what the wait reports concerns that work and not the range.
func (m *mappings) free(bytes int64) error {
	if len(m.spans) > 0 {
		cu.CtxSynchronize()
	}
	var errs []error
	for _, s := range m.spans {
		errs = append(errs, check("cuMemUnmap", cu.MemUnmap(m.base+cu.DevicePtr(s.offset), uint64(s.bytes))))
	}
	m.spans = nil
	errs = append(errs, check("cuMemAddressFree", cu.MemAddressFree(m.base, uint64(bytes))))
	return joinErrors(errs)
}

// Base is the first address, valid until Close; 0 after it.
func (r *AddressRange) Base() cu.DevicePtr {
	if r.use() != nil {
		return 0
	}
	defer r.done()
	r.expose()
	return r.base
}

// Bytes is the size of the range.
func (r *AddressRange) Bytes() int64 { return r.bytes }

// Map puts the first bytes of the allocation, which it borrows, at offset in the range. Nobody may access them before
// [AddressRange.SetAccess]. offset and bytes are multiples of [Device.Granularity]; nothing may be mapped there yet.
// More bytes than the allocation has are refused.
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
	return r.change(func() error {
		err := check("cuMemMap", cu.MemMap(r.base+cu.DevicePtr(offset), uint64(bytes), 0, a.handle, 0))
		if err == nil {
			r.state.spans = append(r.state.spans, span{offset, bytes})
		}
		return err
	})
}

// change runs fn with the context current and the range's lock held for writing.
func (r *AddressRange) change(fn func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owned == nil {
		return os.ErrClosed
	}
	return r.p.do(fn)
}

// Unmap takes away what was mapped at offset, after all work of the context is done.
func (r *AddressRange) Unmap(offset int64) error {
	return r.dev.opError("unmap", r.change(func() error {
		i := slices.IndexFunc(r.state.spans, func(s span) bool { return s.offset == offset })
		if i < 0 {
			return invalid("nothing is mapped at offset %d", offset)
		}
		cu.CtxSynchronize() // what it reports is the work's
		s := r.state.spans[i]
		r.state.spans = slices.Delete(r.state.spans, i, i+1)
		return check("cuMemUnmap", cu.MemUnmap(r.base+cu.DevicePtr(offset), uint64(s.bytes)))
	}))
}

// SetAccess says what device dev may do with the bytes at offset, which whole mappings make up. It is this process's
// own choice: an exporter has no say in how an importer maps.
func (r *AddressRange) SetAccess(dev *Device, offset, bytes int64, access Access) error {
	return r.dev.opError("set access", r.setAccess(dev, offset, bytes, access))
}

func (r *AddressRange) setAccess(dev *Device, offset, bytes int64, access Access) error {
	if offset < 0 || bytes <= 0 || offset > r.bytes || bytes > r.bytes-offset {
		return invalid("%d bytes at %d in a range of %d", bytes, offset, r.bytes)
	}
	return r.call(func() error {
		desc := cu.MemAccessDesc{Flags: cu.MemAccess_flags(access)}
		desc.Location.Type = cu.MEM_LOCATION_TYPE_DEVICE
		*desc.Location.Id() = int32(dev.handle)
		return check("cuMemSetAccess", cu.MemSetAccess(r.base+cu.DevicePtr(offset), uint64(bytes), &desc, 1))
	})
}

// Close waits for all work of the context, unmaps what is mapped and gives the addresses back. A second Close is nil.
func (r *AddressRange) Close() error { return r.dev.opError("free addresses", r.close()) }
