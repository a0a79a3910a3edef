package driver

import (
	"fmt"
	"io"
	"sync/atomic"
)

// Device can hold bytes and let another process use them. All methods are safe for concurrent use.
type Device interface {
	// Info describes the device. It never fails and never blocks.
	Info() Info

	// Alloc returns owned, zeroed memory of the given number of bytes, which may be 0 or odd; the device rounds the
	// allocation behind it up to its granularity. It fails with [ErrOutOfMemory] where the system refuses the
	// memory and with [ErrInvalid] for a negative size. The device must outlive the memory.
	Alloc(bytes int64) (Memory, error)

	// Import maps memory that another process exported. It borrows h: the caller still closes it, and may do so as
	// soon as Import returns. The mapping is read-only unless opts asks otherwise. Nothing in h is trusted: kind,
	// device, size and offset are checked against what the system says of the object behind it, and a handle that does
	// not hold is refused with [ErrHandle] (or an [UnsupportedError] for a kind that this device cannot import).
	Import(h Handle, opts ImportOptions) (Memory, error)

	// Close releases what the device itself holds. Memory from it must be closed before. A second Close is nil.
	Close() error
}

// ImportOptions says how memory of another process is mapped. The zero value maps it read-only.
type ImportOptions struct {
	// Writable asks for a mapping that can be written. Frozen memory refuses it.
	Writable bool
}

// Memory is a run of bytes on a device. Its methods are safe for concurrent use; concurrent writes to the same bytes
// are ordered by the callers. After Close every method but Bytes, Device, Writable and Close fails with [os.ErrClosed].
type Memory interface {
	// ReadAt copies bytes from the memory to host memory, with the contract of [io.ReaderAt].
	io.ReaderAt
	// WriteAt copies bytes from host memory to the memory, with the contract of [io.WriterAt]. It never extends the
	// memory; a write past its end fails with [ErrRange] and writes nothing. Read-only memory refuses it with
	// [ErrReadOnly].
	io.WriterAt

	// Device is the device that made this memory. The memory borrows it.
	Device() Device
	// Bytes is the size asked for, or, of imported memory, the size that the handle names and the device checked.
	Bytes() int64
	// Writable reports whether this mapping may be written.
	Writable() bool
	// Export returns a handle, owned by the caller, with which another process can import the memory. Work that
	// still writes the memory is the caller's to finish first.
	Export() (Handle, error)
	// Close gives up this mapping. The bytes live on while anyone else has them mapped or holds a handle. A second
	// Close is nil.
	Close() error
}

// Mapped is memory that the processor addresses directly.
type Mapped interface {
	Memory
	// Data is the memory itself, Bytes long, not a copy; nil after Close. It is valid until Close. Writing to it while
	// Writable is false kills the process (SIGSEGV). Memory whose Data was handed out is given back by Close alone,
	// never by the garbage collector: a slice of it may outlive everything else that refers to it (see [Leak]).
	Data() []byte
	// Pin returns the memory as Data does, for use until unpin is called, once. Until then it stays mapped, even where
	// it is closed meanwhile, and where write is set it stays writable: [Sealer.Seal] fails with [ErrBusy]. No slice of
	// data may be kept longer. Errors are [os.ErrClosed], and [ErrReadOnly] where write is set and the memory is not
	// Writable.
	Pin(write bool) (data []byte, unpin func(), err error)
}

// Exposer is memory that knows whether somebody may have a slice or an address of it.
type Exposer interface {
	Memory
	// Exposed is true once a slice of the memory or its address was handed out ([Mapped.Data],
	// [Addressable.DevicePointer]). The flag does not keep the memory reachable, so cleanups can look at it.
	Exposed() *atomic.Bool
}

// Sparse is memory of which parts may not exist yet, as of a file with holes. They read as zeros. ReadAt does not make
// them; touching them through Data or Pin does.
type Sparse interface {
	Memory
	// Allocated tells how much memory there is behind the object of which the memory is all or a part, and how large
	// that object is, both in bytes. It has holes where allocated is less than size.
	Allocated() (allocated, size int64, err error)
}

// Addressable is memory that a device addresses.
type Addressable interface {
	Memory
	// DevicePointer is the address on the device, valid until Close; 0 after it. Memory whose address was handed out is
	// given back by Close alone, never by the garbage collector (see [Leak]).
	DevicePointer() uint64
}

// Freezer is memory that its owner can close against new writers.
type Freezer interface {
	Memory
	// Freeze refuses writable mappings and writes by descriptor from now on. Mappings that exist stay as they are, this
	// one too. Freezing twice is nil. Export of frozen memory gives handles that only import read-only.
	Freeze() error
	// Frozen reports whether that was done, here or in another process. Closed memory is not.
	Frozen() bool
}

// Describer is memory that can say how others get it without giving it to anybody.
type Describer interface {
	Memory
	// Describe returns the handle that Export returns, without its descriptor. Errors are those of Export.
	Describe() (Handle, error)
}

// Sealer is memory that can be closed against all writers for ever, this process included.
type Sealer interface {
	Memory
	// Seal refuses all writes to the memory from now on. This mapping stays where it is and is read-only: Writable is
	// false, and a write to its Data kills the process. The bytes are final, so the memory has an identity
	// ([Identifier]). It is for memory that no other process has mapped yet; a mapping that could be written, or become
	// so, makes it fail with [ErrBusy] and change nothing. So does a write that is under way: one by [Loader.LoadAt] or
	// through [Mapped.Pin]; one that comes later fails with [ErrReadOnly]. Sealing twice is nil. Memory that is mapped
	// read-only is [ErrReadOnly]: that is its owner's decision; so is frozen memory, whose other mappings nobody knows.
	Seal() error
}

// Loader is memory that has a faster way to be filled from a file than ReadAt into a buffer and WriteAt out of it.
type Loader interface {
	Memory
	// LoadAt copies n bytes of src from offset srcOff to the memory at dstOff and returns when they are there.
	// progress, if not nil, is told the number of bytes done since it was last called, from one goroutine at a time.
	LoadAt(src io.ReaderAt, srcOff, dstOff, n int64, progress func(bytes int64)) error
}

// Syncer is a device on which work goes on after the call that started it returned.
type Syncer interface {
	Device
	// Synchronize returns when all work that this process started on the device is done.
	Synchronize() error
}

// Support reports whether a handle kind works on this device and host, and why not.
type Support struct {
	// Kind is the kind of handle the answer is about.
	Kind HandleKind
	// Err is nil where memory can be exported and imported by this kind, else the reason in one sentence.
	Err error
}

// Prober is a device that can tell which kinds of handle work on this host.
type Prober interface {
	Device
	// Probe tries each kind that the device knows and reports on all of them.
	Probe() []Support
}

// Identifier is memory that can be recognised when it is seen again, in whichever process.
type Identifier interface {
	Memory
	// Identity is a name that no other memory of this host has while this one exists; ok is true only where the system
	// itself keeps everybody from writing to the memory ever again, this process included, so that equal identities
	// mean equal bytes. Frozen memory ([Freezer]) is not enough: mappings from before the freeze can still be written.
	Identity() (id string, ok bool)
}

// Placed is memory that can be told from other memory, whoever may write it.
type Placed interface {
	Memory
	// Place says where the bytes are: memory of this process with the same place, mapped once or twice, is the same
	// memory, as long as all of it is open. ok is false where the system cannot tell.
	Place() (place Place, ok bool)
}

// Place is a range of bytes of an object of the system. It is comparable.
type Place struct {
	// Object names what holds the bytes. The name is good while somebody has the object open.
	Object string
	// Offset is where the bytes begin in the object, Bytes how many they are.
	Offset, Bytes int64
}

// String is the object and the range.
func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.Object, p.Offset, p.Bytes) }
