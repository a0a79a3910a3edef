// Package driver defines memory devices, which hold bytes and let other processes use them in place.
//
// A [Device] allocates [Memory]. A Memory is exported as a [Handle]. Another process imports the handle on its own
// Device and gets a Memory over the same bytes. This package only has the vocabulary: devices are in driver/host
// (sealed shared memory) and driver/cuda (the CUDA driver), and driver/drivertest is their conformance suite.
//
// Three verbs describe ownership everywhere in this module. A function that borrows a value leaves closing it to the
// caller. One that takes a value closes it, even on failure. One that returns a value owned leaves closing it to the
// caller.
//
// A surprise: memory belongs to the processes that map it. Closing the exporter's Memory, or killing the exporting
// process, does not affect processes that have imported it (handle kinds memfd and cuda-fd).
package driver

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// Device allocates memory and shares it with other processes. All methods are safe for concurrent use.
type Device interface {
	// Info describes the device. It never fails or blocks.
	Info() Info

	// Alloc returns owned, zeroed memory of the given number of bytes, which may be 0 or odd; the allocation is rounded
	// up to the device's granularity. If the system refuses the memory it returns [ErrOutOfMemory], for a negative size
	// [ErrInvalid]. The device must outlive the memory.
	Alloc(bytes int64) (Memory, error)

	// Import maps memory that another process exported. It borrows h: the caller closes it, at the earliest after
	// Import has returned. The mapping is read-only unless opts requests otherwise. h is not trusted: kind, device,
	// size and offset are compared with the system's information about the object, and an invalid handle is refused
	// with [ErrHandle], an unknown kind with an [UnsupportedError].
	Import(h Handle, opts ImportOptions) (Memory, error)

	// Synchronize returns when all work that this process started on the device is done. Devices without asynchronous
	// work return nil.
	Synchronize() error
	// Probe tries every kind of handle that the device supports, and reports which of them work on this host.
	Probe() []Support
	// MemoryLimit returns the maximum memory in bytes that this process can have of the device, and the origin of the
	// limit for display; 0 if unknown.
	MemoryLimit() (bytes int64, why string)
	// OnRefused registers reclaim, which is called after the system refused the given bytes. It frees memory if it can
	// and reports whether it did; the allocation is then retried until no reclaim function frees anything. It may be
	// called concurrently, and while the caller of Alloc holds locks. remove ends the registration. [Reclaim]
	// implements it.
	OnRefused(reclaim func(bytes int64) bool) (remove func())
	// Close releases the device's own resources. Its memory must be closed before. A second Close returns nil.
	Close() error
}

// ImportOptions configures how memory of another process is mapped. The zero value maps it read-only.
type ImportOptions struct {
	// Writable requests a writable mapping. Frozen memory refuses it.
	Writable bool
}

// Memory is a range of bytes on a device. Its methods are safe for concurrent use; callers order concurrent writes to
// the same bytes. After Close every method except Bytes, Device, Writable and Close fails with [os.ErrClosed].
type Memory interface {
	// ReadAt copies bytes from the memory to host memory, with the contract of [io.ReaderAt].
	io.ReaderAt
	// WriteAt copies bytes from host memory to the memory, with the contract of [io.WriterAt]. It never extends the
	// memory; a write past its end fails with [ErrRange] and writes nothing. Read-only memory refuses it with
	// [ErrReadOnly].
	io.WriterAt

	// CopyFrom copies n bytes of src at srcOff to this memory at off, inside the device, without a copy through host
	// memory. It borrows src and returns when the copy is complete. If the device cannot do that for these memories it
	// returns an error that matches [errors.ErrUnsupported] and copies nothing. The ranges must not overlap. Other
	// errors are those of WriteAt.
	CopyFrom(off int64, src Memory, srcOff, n int64) error

	// Device returns the device that created the memory, borrowed.
	Device() Device
	// Bytes returns the requested size, or for imported memory the verified size of the handle.
	Bytes() int64
	// Writable reports whether this mapping may be written.
	Writable() bool
	// Freeze refuses new writable mappings and writes by descriptor. Existing mappings do not change, including this
	// one. A second Freeze returns nil. Handles of frozen memory can only be imported read-only. Memory that is not
	// [Description.Freezable] returns an error that matches [errors.ErrUnsupported].
	Freeze() error
	// Seal refuses all later writes to the memory, including those of this process. This mapping stays in place and
	// becomes read-only: Writable is false, and a write to its Data kills the process. The bytes are final, so the
	// memory gets an identity ([Description]). The memory must not be mapped by another process yet. If another mapping
	// is or may become writable, Seal fails with [ErrBusy] and changes nothing; so it does during a write by
	// [Loader.LoadAt] or through [Mapped.Pin]. Later writes fail with [ErrReadOnly]. A second Seal returns nil. Memory
	// that is mapped read-only returns [ErrReadOnly], because its owner decides; so does frozen memory, whose other
	// mappings are unknown. Devices without seals return an error that matches [errors.ErrUnsupported].
	Seal() error
	// Describe returns the status of the memory, as the system reports it.
	Describe() (Description, error)
	// Handle returns the handle of Export without its descriptor. It returns the errors of Export.
	Handle() (Handle, error)
	// Export returns a handle, owned by the caller, by which another process can import the memory. The caller must
	// first finish work that writes the memory.
	Export() (Handle, error)
	// Close releases this mapping. The bytes remain while another process maps them or holds a handle. A second Close
	// returns nil.
	Close() error
}

// Freeze freezes memory, which it borrows, if its device can freeze memory. Otherwise it returns nil: each importer
// chooses whether its mapping is writable.
func Freeze(m Memory) error {
	err := m.Freeze()
	if errors.Is(err, errors.ErrUnsupported) {
		if d, describeErr := m.Describe(); describeErr == nil && !d.Freezable {
			return nil
		}
	}
	return err
}

// Mapped is memory that the processor can address.
type Mapped interface {
	Memory
	// Data returns the memory itself as a slice of Bytes bytes, or nil after Close. It is valid until Close. Writing to
	// it while Writable is false kills the process (SIGSEGV). After Data was called, only Close releases the memory,
	// never the garbage collector, because a slice of it may remain in use (see [Leak]).
	Data() []byte
	// Pin returns the memory as Data does, for use until unpin is called. Until then it stays mapped, even after Close,
	// and with write it stays writable: [Sealer.Seal] fails with [ErrBusy]. No slice of data may be kept longer. A
	// second call of unpin does nothing. Errors are [os.ErrClosed], and [ErrReadOnly] with write for memory that is not
	// Writable.
	Pin(write bool) (data []byte, unpin func(), err error)
	// Exposed becomes true when Data returned a slice, which may remain in use. The flag does not keep the memory
	// reachable, so cleanups can read it.
	Exposed() *atomic.Bool
}

// Addressable is memory that a device can address.
type Addressable interface {
	Memory
	// DevicePointer returns the address on the device, valid until Close; 0 after it. After it was called, only Close
	// releases the memory, never the garbage collector (see [Leak]).
	DevicePointer() uint64
	// Exposed becomes true when DevicePointer returned the address, as in [Mapped].
	Exposed() *atomic.Bool
}

// Description is the status of a memory.
type Description struct {
	// Freezable reports whether the device can freeze memory. If it cannot, each importer chooses whether its mapping
	// is writable.
	Freezable bool
	// Frozen reports whether the memory was frozen or sealed, here or in another process.
	Frozen bool
	// Identity is a name that no other memory of this host has while this one exists. It is empty unless the system
	// prevents all further writes to the memory, including those of this process, so that equal identities mean equal
	// bytes. Frozen memory has none, because older mappings may be writable.
	Identity string
	// Place is the location of the bytes. Memory of this process with the same place, mapped once or twice, is the same
	// memory while all of it is open. Object is empty if the system cannot determine the location.
	Place Place
	// Allocated is the number of allocated bytes of the object that contains the memory, and Size the object's size. If
	// Allocated is less than Size, parts of the object are not allocated, such as the holes of a file. They read as
	// zeros. ReadAt does not allocate them; touching them through Data or Pin does. Size is 0 if unknown.
	Allocated, Size int64
	// Reusable reports whether the owner of the memory may write other bytes to it once no other process has it open or
	// mapped. Data that the kernel was asked to send without a copy (splice, sendfile) is not waited for: send bytes of
	// such memory by a copy.
	Reusable bool
}

// Loader is memory with a faster way to read a file than ReadAt into a buffer and WriteAt.
type Loader interface {
	Memory
	// LoadAt copies n bytes of src from offset srcOff to the memory at dstOff and returns when the copy is complete.
	// progress, if not nil, receives the number of bytes copied since its last call, on one goroutine at a time.
	LoadAt(src io.ReaderAt, srcOff, dstOff, n int64, progress func(bytes int64)) error
}

// Support reports whether a handle kind works on this device and host.
type Support struct {
	// Kind is the kind of handle.
	Kind HandleKind
	// Err is nil if memory can be exported and imported by this kind, otherwise the reason in one sentence.
	Err error
}

// Place is a range of bytes of a system object. It is comparable.
type Place struct {
	// Object names the object that contains the bytes. The name is valid while the object is open in any process.
	Object string
	// Offset is the offset of the bytes in the object, Bytes their number.
	Offset, Bytes int64
}

// String returns the object and the range.
func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.Object, p.Offset, p.Bytes) }
