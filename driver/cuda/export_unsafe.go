package cuda

import (
	"os"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// ExportFile returns a close-on-exec descriptor with which another process can import the allocation. The caller owns
// it. It keeps the memory alive while it is open. The allocation must have been made with [FileHandle], also one that was
// imported.
func (a *Allocation) ExportFile() (*os.File, error) {
	f, err := a.exportFile()
	return f, a.dev.opError("export", err)
}

func (a *Allocation) exportFile() (*os.File, error) {
	var f *os.File
	err := a.call(func(c cu.Context) (err error) {
		if a.file != nil {
			f, err = duplicateFile(a.file)
			return err
		}
		f, err = exportedFile(func(fd *int32) error {
			return check("cuMemExportToShareableHandle",
				c.MemExportToShareableHandle(unsafe.Pointer(fd), a.handle, cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		})
		return err
	})
	return f, err
}

// ExportFabric returns 64 bytes with which a process of the same NVLink domain can import the allocation. The
// allocation must have been made with [FabricHandle].
func (a *Allocation) ExportFabric() ([64]byte, error) {
	h, err := a.exportFabric()
	return h, a.dev.opError("export", err)
}

func (a *Allocation) exportFabric() ([64]byte, error) {
	var h cu.MemFabricHandle
	err := a.call(func(c cu.Context) error {
		if a.data != nil {
			h.Data = *a.data
			return nil
		}
		return check("cuMemExportToShareableHandle",
			c.MemExportToShareableHandle(unsafe.Pointer(&h), a.handle, cu.MEM_HANDLE_TYPE_FABRIC, 0))
	})
	return h.Data, err
}

// ImportFabric returns an allocation that another process exported as a fabric handle. The caller owns it. It is
// checked like that of [Device.ImportFile].
func (d *Device) ImportFabric(handle [64]byte) (*Allocation, error) {
	return made(d, "import", func() (*Allocation, error) { return d.importFabric(handle) })
}

func (d *Device) importFabric(handle [64]byte) (*Allocation, error) {
	a := &Allocation{dev: d, data: &handle}
	// The driver takes the address of the handle in a parameter that otherwise contains a descriptor. A heap object
	// does not move, and the closure keeps it alive.
	h := &cu.MemFabricHandle{Data: handle}
	if err := d.makeAllocation(a, func(c cu.Context) error { return importFabric(c, &a.handle, h) }); err != nil {
		return nil, err
	}
	return a, d.verify(a)
}

//go:uintptrescapes
func importAt(c cu.Context, out *cu.MemGenericAllocationHandle, at uintptr, types cu.MemAllocationHandleType) cu.Result {
	return c.MemImportFromShareableHandle(out, at, types)
}

func importFabric(c cu.Context, out *cu.MemGenericAllocationHandle, h *cu.MemFabricHandle) error {
	return fabricError(FabricHandle, check("cuMemImportFromShareableHandle", importAt(c, out, uintptr(unsafe.Pointer(h)), cu.MEM_HANDLE_TYPE_FABRIC)))
}
