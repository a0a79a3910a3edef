package cuda

import (
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// AllocLegacy returns memory of cuMemAlloc, which the caller owns. It is not zeroed, and is shared by cuda-ipc handles
// only. Unless the size is a multiple of 2 MiB, the memory may share a block with other allocations of this process,
// and a process that opens the handle can access the whole block. [Device.Alloc] with [WithHandleKind] rounds up for
// that reason.
func (d *Device) AllocLegacy(bytes int64) (*Memory, error) {
	return made(d, "alloc", func() (*Memory, error) {
		if bytes <= 0 {
			return nil, invalid("%d bytes", bytes)
		}
		return d.allocLegacy(bytes)
	})
}

// allocLegacy is AllocLegacy for callers that hold a reference to the context.
func (d *Device) allocLegacy(bytes int64) (*Memory, error) {
	m := &Memory{dev: d, bytes: bytes, writable: true}
	make := func(c cu.Context) error { return check("cuMemAlloc", c.MemAlloc(&m.ptr, uint64(bytes))) }
	if err := create(&m.resource, d, "memory", bytes, &m.ptr, make, "cuMemFree", cu.MemFree); err != nil {
		return nil, err
	}
	p, ptr := d.p, m.ptr
	m.export = func() (driver.Handle, error) {
		blob, offset, err := p.ipcHandle(ptr)
		return driver.Handle{Kind: driver.CUDAIPC, Blob: blob[:], Offset: offset}, err
	}
	return m, nil
}

// ipcHandle returns a handle of the allocation that contains ptr, and the offset of ptr in it. A handle always refers
// to the whole allocation.
func (p *primary) ipcHandle(ptr cu.DevicePtr) (blob [64]byte, offset int64, err error) {
	var h cu.IpcMemHandle
	var base cu.DevicePtr
	if err := check("cuMemGetAddressRange", p.ctx.MemGetAddressRange(&base, nil, ptr)); err != nil {
		return h.Reserved, 0, err
	}
	return h.Reserved, int64(ptr - base), check("cuIpcGetMemHandle", p.ctx.IpcGetMemHandle(&h, ptr))
}

// IPCHandle returns the legacy handle of the allocation that contains ptr, and the offset of ptr in it in bytes. The
// allocation must be of cuMemAlloc, by any code of this process, in this device's primary context.
func (d *Device) IPCHandle(ptr cu.DevicePtr) (handle [64]byte, offset int64, err error) {
	if err := d.hold(); err != nil {
		return handle, 0, d.opError("export", err)
	}
	defer func() { _ = d.p.drop() }()
	handle, offset, err = d.p.ipcHandle(ptr)
	return handle, offset, d.opError("export", err)
}

// opened are the legacy handles that this process has open, each once in a context: the driver refuses to open a handle
// twice, or counts in its own way. The key is the whole handle, because parts of it repeat when addresses are reused.
// Contexts do not share an opening: the address is of the context that opened it, and ends with it.
var opened = struct {
	mu sync.Mutex
	m  map[ipcKey]*ipcMapping
}{m: map[ipcKey]*ipcMapping{}}

type ipcKey struct {
	handle  [64]byte
	context cu.Context
}

type ipcMapping struct {
	base  cu.DevicePtr
	bytes int64
	users int
}

// openIPC opens a handle in the context of the key, or adds a user if it is open there.
func openIPC(key ipcKey) (*ipcMapping, error) {
	c := key.context
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if m := opened.m[key]; m != nil {
		m.users++
		return m, nil
	}
	m := &ipcMapping{users: 1}
	err := check("cuIpcOpenMemHandle", c.IpcOpenMemHandle(&m.base, cu.IpcMemHandle{Reserved: key.handle},
		cu.IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
	if err != nil {
		return nil, err
	}
	var base cu.DevicePtr
	var size uint64
	err = check("cuMemGetAddressRange", c.MemGetAddressRange(&base, &size, m.base))
	if err == nil && base > m.base {
		err = fmt.Errorf("%w: the driver mapped it at %#x, outside its own allocation", driver.ErrHandle, uint64(m.base))
	}
	if err != nil {
		close := func() cu.Result { return c.IpcCloseMemHandle(m.base) }
		return nil, joinErrors([]error{err, freeNow("cuIpcCloseMemHandle", close)})
	}
	m.bytes = int64(size) - int64(m.base-base)
	opened.m[key] = m
	return m, nil
}

// closeIPC removes a user, whose work is done. The last one closes the handle. The context is current.
func closeIPC(key ipcKey) error {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	m := opened.m[key]
	if m.users > 1 {
		m.users--
		return nil
	}
	err := freed("cuIpcCloseMemHandle", cu.IpcCloseMemHandle(m.base))
	if !mustRetry(err) {
		delete(opened.m, key)
	}
	return err
}

// OpenIPC returns writable memory over the whole allocation of a legacy handle from another process. The caller owns
// it. Its size is the one that the driver reports. A handle that is already open in the device's context is opened once
// and counted. The allocation must be on this device. The driver allows one context of a device to open handles of a
// process. A handle of this process is refused with [driver.ErrHandle], one whose owner has
// exited with [ErrPeerGone].
//
// What the mapping contains after the owner frees the memory is undefined.
func (d *Device) OpenIPC(handle [64]byte) (*Memory, error) {
	return made(d, "open", func() (*Memory, error) {
		m, err := d.openMemory(handle)
		return m, handleError(err)
	})
}

// openMemory is OpenIPC for callers that hold a reference to the context.
func (d *Device) openMemory(handle [64]byte) (*Memory, error) {
	key := ipcKey{handle, d.p.ctx}
	opened, err := openIPC(key)
	if err != nil {
		return nil, err
	}
	m := &Memory{dev: d, ptr: opened.base, bytes: opened.bytes, writable: true}
	m.export = func() (driver.Handle, error) {
		return driver.Handle{Kind: driver.CUDAIPC, Blob: append([]byte(nil), handle[:]...)}, nil
	}
	if err := m.own(d.p, "memory", m.bytes, func() error { return closeIPC(key) }); err != nil {
		return nil, err
	}
	return m, nil
}

// importIPC returns memory inside an opened allocation.
func (d *Device) importIPC(h driver.Handle) (*Memory, error) {
	m, err := d.openMemory([64]byte(h.Blob))
	if err != nil {
		return nil, err
	}
	if h.Offset > m.bytes || h.Bytes > m.bytes-h.Offset {
		err := fmt.Errorf("%w: %d bytes at %d in an allocation of %d", driver.ErrHandle, h.Bytes, h.Offset, m.bytes)
		return nil, joinErrors([]error{err, m.discard()})
	}
	m.ptr += cu.DevicePtr(h.Offset)
	m.bytes = h.Bytes
	whole := m.export
	m.export = func() (driver.Handle, error) {
		out, err := whole()
		out.Offset = h.Offset
		return out, err
	}
	return m, nil
}
