package cuda

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// ExportFile returns a close-on-exec descriptor with which another process can import the pool. The caller owns it. The
// pool must have been made with [FileHandle]. The descriptor gives access to allocations that are exported one by one
// ([Pool.ExportMemory]).
func (p *Pool) ExportFile() (*os.File, error) {
	var f *os.File
	err := p.call(func(c cu.Context) (err error) {
		f, err = exportedFile(func(fd *int32) error {
			return check("cuMemPoolExportToShareableHandle", c.MemPoolExportToShareableHandle(unsafe.Pointer(fd), p.handle,
				cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		})
		return err
	})
	return f, p.dev.opError("export pool", err)
}

// ImportPool returns a pool that another process exported. The caller owns it. It borrows f. Memory cannot be allocated
// from it, only imported ([Pool.ImportMemory]).
func (d *Device) ImportPool(f *os.File) (*Pool, error) {
	return made(d, "import pool", func() (*Pool, error) {
		conn, err := f.SyscallConn()
		if err != nil {
			return nil, err
		}
		p := &Pool{dev: d}
		var importErr error
		err = conn.Control(func(fd uintptr) {
			make := func(c cu.Context) error {
				return handleError(check("cuMemPoolImportFromShareableHandle",
					c.MemPoolImportFromShareableHandle(&p.handle, fd, cu.MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
			}
			importErr = create(&p.resource, d, "pool", 0, &p.handle, make, "cuMemPoolDestroy", cu.MemPoolDestroy)
		})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrHandle, err) // the file is closed
		}
		return p, importErr
	})
}

// ExportMemory returns 64 bytes with which a process that has imported the pool can map m, an allocation of it. The
// importer must not use the memory before the allocation is complete in its stream, and must close it before m is closed
// here.
func (p *Pool) ExportMemory(m *Memory) ([64]byte, error) {
	var data cu.MemPoolPtrExportData
	if !m.pooled {
		return data.Reserved, p.dev.opError("export memory", invalid("the memory is not from a pool"))
	}
	err := withAll([]*resource{&p.resource, &m.resource}, func() error {
		return check("cuMemPoolExportPointer", p.p.ctx.MemPoolExportPointer(&data, m.ptr))
	})
	return data.Reserved, p.dev.opError("export memory", err)
}

// ImportMemory returns memory that another process exported from the pool that p was imported from. The caller owns it,
// and may close it or free it in stream order ([Stream.Free]). The driver reports its size. An invalid handle, or one of
// a process that has exited, is refused with [driver.ErrHandle].
func (p *Pool) ImportMemory(handle [64]byte) (*Memory, error) {
	m, err := made(p.dev, "import memory", func() (*Memory, error) {
		if err := p.use(); err != nil {
			return nil, err
		}
		defer p.done()
		return p.importMemory(cu.MemPoolPtrExportData{Reserved: handle})
	})
	return m, err
}

func (p *Pool) importMemory(data cu.MemPoolPtrExportData) (*Memory, error) {
	m := &Memory{dev: p.dev, writable: true, pooled: true}
	var size uint64
	c := p.p.ctx
	if err := handleError(check("cuMemPoolImportPointer", c.MemPoolImportPointer(&m.ptr, p.handle, &data))); err != nil {
		return nil, err
	}
	ptr := m.ptr
	err := check("cuMemGetAddressRange", c.MemGetAddressRange(nil, &size, ptr))
	m.bytes = int64(size)
	if err := m.own(p.p, "memory", m.bytes, func() error { return freed("cuMemFree", cu.MemFree(ptr)) }); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, joinErrors([]error{err, m.discard()})
	}
	m.release.source = p.life
	return m, nil
}

// SetAccess sets whether another device can access memory of the pool: [ReadWrite] or [NoAccess]. The device of the pool
// always has access.
func (p *Pool) SetAccess(dev *Device, access Access) error {
	return p.dev.opError("pool access", p.call(func(c cu.Context) error {
		desc := cu.MemAccessDesc{Location: cu.DeviceLocation(dev.handle), Flags: cu.MemAccess_flags(access)}
		return check("cuMemPoolSetAccess", c.MemPoolSetAccess(p.handle, &desc, 1))
	}))
}

// Access returns the access of a device to memory of the pool.
func (p *Pool) Access(dev *Device) (Access, error) {
	at := cu.DeviceLocation(dev.handle)
	var flags cu.MemAccess_flags
	err := p.call(func(c cu.Context) error {
		return check("cuMemPoolGetAccess", c.MemPoolGetAccess(&flags, p.handle, &at))
	})
	return Access(flags), p.dev.opError("pool access", err)
}
