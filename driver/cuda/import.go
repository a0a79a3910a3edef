package cuda

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// exporter returns a function that makes handles of an allocation in which the memory begins at offset.
func (a *Allocation) exporter(types HandleTypes, offset int64) func() (driver.Handle, error) {
	if types == FabricHandle {
		return func() (driver.Handle, error) {
			blob, err := a.exportFabric()
			return driver.Handle{Kind: driver.CUDAFabric, Offset: offset, Blob: blob[:]}, err
		}
	}
	return func() (driver.Handle, error) {
		f, err := a.exportFile()
		return driver.Handle{Kind: driver.CUDAFD, Offset: offset, File: f}, err
	}
}

// Import maps memory that another process exported, read-only unless opts requests otherwise. It borrows h. It checks
// the properties that the driver reports, because the handle is from a peer: the object must be memory of this device,
// and at least as large as the handle states. Otherwise Import returns [driver.ErrHandle].
//
// Legacy memory (cuda-ipc) cannot be mapped read-only. For it, read-only means that the methods of Memory refuse to
// write.
func (d *Device) Import(h driver.Handle, opts driver.ImportOptions) (driver.Memory, error) {
	m, err := made(d, "import", func() (*Memory, error) { return d.importMemory(h, opts) })
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (d *Device) importMemory(h driver.Handle, opts driver.ImportOptions) (*Memory, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	switch h.Kind {
	case driver.CUDAFD, driver.CUDAFabric, driver.CUDAIPC:
	default:
		return nil, &driver.UnsupportedError{Feature: fmt.Sprintf("importing %s on a CUDA device", h.Kind),
			Requires: "a handle of kind cuda-fd, cuda-fabric or cuda-ipc"}
	}
	if h.Device != d.info.UUID {
		return nil, fmt.Errorf("%w: memory of device %s, this is %s", driver.ErrHandle, h.Device, d.info.UUID)
	}
	var m *Memory
	var err error
	if h.Kind == driver.CUDAIPC {
		m, err = d.importIPC(h)
	} else {
		m, err = d.importShared(h, opts)
	}
	if err != nil {
		return nil, handleError(err)
	}
	m.writable = opts.Writable
	return m, nil
}

// importShared imports virtual memory. Mapping fails if the allocation is smaller than the handle states.
func (d *Device) importShared(h driver.Handle, opts driver.ImportOptions) (*Memory, error) {
	types := handleTypes(h.Kind)
	unit, err := granularity(d.handle, types, cu.MEM_ALLOC_GRANULARITY_MINIMUM)
	if err != nil {
		return nil, err
	}
	bytes, ok := roundUp(max(h.Offset+h.Bytes, 1), unit)
	if !ok {
		return nil, fmt.Errorf("%w: %d bytes at %d", driver.ErrHandle, h.Bytes, h.Offset)
	}
	var a *Allocation
	if types == FabricHandle {
		a, err = d.importFabric([64]byte(h.Blob))
	} else {
		a, err = d.importFile(h.File)
	}
	if err != nil {
		return nil, err
	}
	access := ReadOnly
	if opts.Writable {
		access = ReadWrite
	}
	m, err := d.mapWhole(a, bytes, access)
	if err != nil {
		return nil, err
	}
	m.ptr += cu.DevicePtr(h.Offset)
	m.bytes = h.Bytes
	m.export = a.exporter(types, h.Offset)
	return m, nil
}

// handleError converts errors of an import that mean an invalid handle to [driver.ErrHandle]. On import, the arguments
// of the driver call are from the peer.
func handleError(err error) error {
	var e *Error
	if !errors.As(err, &e) || errors.Is(err, driver.ErrHandle) {
		return err
	}
	switch e.Code {
	case cu.ERROR_UNKNOWN: // driver 580 answers this to a descriptor that is not memory
		if e.Func == "cuMemImportFromShareableHandle" {
			return fmt.Errorf("%w: %w", driver.ErrHandle, err)
		}
	case cu.ERROR_INVALID_VALUE, cu.ERROR_INVALID_HANDLE, cu.ERROR_INVALID_DEVICE, cu.ERROR_MAP_FAILED, cu.ERROR_OPERATING_SYSTEM,
		cu.ERROR_INVALID_RESOURCE_TYPE:
		return fmt.Errorf("%w: %w", driver.ErrHandle, err)
	case cu.ERROR_INVALID_CONTEXT:
		if e.Func == "cuIpcOpenMemHandle" || e.Func == "cuIpcOpenEventHandle" || e.Func == "cuMemPoolImportPointer" {
			return fmt.Errorf("%w: made by this process, or by one with the same process number: %w", driver.ErrHandle, err)
		}
	case cu.ERROR_ALREADY_MAPPED:
		return fmt.Errorf("%w: already opened in this process by another context or by other code: %w", driver.ErrHandle, err)
	}
	return err
}
