package message

import (
	"fmt"
	"math"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Protocol is the version of the protocol that this package speaks, and OldestProtocol the oldest one it still accepts.
const (
	Protocol       uint32 = 1
	OldestProtocol uint32 = 1
)

// UUID names a device, or is zero where none is meant. It is a byte string of exactly 16 bytes.
type UUID [16]byte

// UnmarshalCBOR reads a byte string of exactly 16 bytes.
func (u *UUID) UnmarshalCBOR(data []byte) error {
	if len(data) != 17 || data[0] != 0x50 {
		return &cbor.UnmarshalTypeError{CBORType: "item", GoType: "wire.UUID (byte string of 16 bytes)"}
	}
	copy(u[:], data[1:])
	return nil
}

// Hello is the first message from each side, the client's first.
type Hello struct {
	// Protocol is the newest version that the sender speaks.
	Protocol uint32 `cbor:"1,keyasint"`
	// Oldest is the oldest version that the sender speaks.
	Oldest uint32 `cbor:"2,keyasint"`
	// Features are optional parts of the protocol that the sender has, sorted. What both sides name may be used.
	Features []string `cbor:"3,keyasint,omitempty"`
	// Server identifies a server's life: another process, or the same one restarted, has another. A client leaves
	// it empty.
	Server string `cbor:"4,keyasint,omitempty"`
	// Version is the sender's program version, for people.
	Version string `cbor:"5,keyasint,omitempty"`
	// PID is the sender's process id in its own namespace, for people; [Conn.Peer] has the one to rely on.
	PID int32 `cbor:"6,keyasint,omitempty"`
	// Devices are the devices on which the sender can export or import memory.
	Devices []DeviceInfo `cbor:"7,keyasint,omitempty"`
	// Label is a name of the sender for people, shown where holders are listed.
	Label string `cbor:"8,keyasint,omitempty"`
}

// DeviceInfo describes a device to the peer. Only UUID and Type mean the same on both sides.
type DeviceInfo struct {
	// UUID names the device across processes.
	UUID UUID `cbor:"1,keyasint"`
	// Type is DLPack's number for the kind of memory: 1 host, 2 CUDA.
	Type int32 `cbor:"2,keyasint"`
	// Index is the device's ordinal in the sender's process.
	Index int32 `cbor:"3,keyasint,omitempty"`
	// Name is what the vendor calls it.
	Name string `cbor:"4,keyasint,omitempty"`
}

// Request asks for an operation.
type Request struct {
	// Op is the operation.
	Op Op `cbor:"1,keyasint"`
	// Timeout is how long the client waits for the answer, 0 for as long as it takes. It is a duration, not a time,
	// so that clocks do not matter; the server stops the work when it has passed.
	Timeout time.Duration `cbor:"2,keyasint,omitempty"`
	// Body is the operation's own message; nil where that is empty.
	Body RawMessage `cbor:"3,keyasint,omitempty"`
	// Metadata goes with calls, tasks and streams; other operations ignore it.
	Metadata Metadata `cbor:"4,keyasint,omitempty"`
}

// Cancel asks to stop the request whose ID the frame has. The request is still answered, mostly with [CodeCanceled].
type Cancel struct {
	// Reason is one sentence for people; it may be empty.
	Reason string `cbor:"1,keyasint,omitempty"`
}

// Goodbye is the last message of its sender. After it the sender reads no further request and answers those it has.
type Goodbye struct {
	// Code is why; 0 for an ordinary end.
	Code Code `cbor:"1,keyasint,omitempty"`
	// Reason is one sentence for people; it may be empty.
	Reason string `cbor:"2,keyasint,omitempty"`
}

// Handle names memory of one process so that another can import it. What it says is a claim that the importer checks.
type Handle struct {
	// Kind says how to import the memory: "memfd", "cuda-fd", "cuda-ipc", "cuda-fabric".
	Kind string `cbor:"1,keyasint"`
	// Device is the device that holds the memory.
	Device UUID `cbor:"2,keyasint"`
	// Bytes is the size of the memory.
	Bytes uint64 `cbor:"3,keyasint"`
	// Offset is where the memory begins inside the allocation that Blob or File names, in bytes.
	Offset uint64 `cbor:"4,keyasint"`
	// Blob is the driver's opaque handle, for kinds without a descriptor.
	Blob []byte `cbor:"5,keyasint,omitempty"`
	// File is the index of the descriptor among those of the frame, or -1 for kinds without one.
	File int32 `cbor:"6,keyasint"`
	// Name is what the owner calls memory that it lends and that nobody writes any more, at most [MaxHandleName] bytes;
	// empty for other memory. Nobody can guess it. A client that passes the memory to the same owner sends it along.
	Name string `cbor:"7,keyasint,omitempty"`
	// Storage is what a client calls memory of its own, if Version is not 0 or [FeatureKeep] was agreed. It means
	// nothing to others than this client.
	Storage uint64 `cbor:"8,keyasint,omitempty"`
	// Version numbers the bytes of that memory: the client promises that they are the same as long as it is. 0 promises
	// nothing.
	Version uint64 `cbor:"9,keyasint,omitempty"`
	// Slab numbers memory of a result that the owner uses again when the client has given it back, if [FeaturePool] was
	// agreed: the memory is the first Bytes of it. 0 for other memory.
	Slab uint64 `cbor:"10,keyasint,omitempty"`
	// SlabBytes is the size of that memory, where it comes with a descriptor; 0 where the client has it mapped.
	SlabBytes uint64 `cbor:"11,keyasint,omitempty"`
}

// FeaturePool is the feature of servers whose results are in memory that is used again ([Handle.Slab]), and of clients
// that keep it mapped and give it back ([Call.SlabsReturned], [OpReturnSlabs]).
const FeaturePool = "pool"

// FeatureRing is the feature of sides that have rings for small frames beside the socket ([wire.Limits.Rings]). The
// handshakes see to the rest.
const FeatureRing = "ring"

// FeatureKeep is the feature of servers that keep memory of arguments mapped: a handle in a call with a Storage asks
// for that, and a later one with the same Storage and neither File nor Blob names what is kept ([Handle.Kept]).
const FeatureKeep = "keep"

// Kept reports whether the handle names memory that the receiver is to have kept, by its number alone.
func (h Handle) Kept() bool { return h.Storage != 0 && h.File < 0 && len(h.Blob) == 0 }

// MaxHandleName is how long the name of a handle may be, in bytes.
const MaxHandleName = 64

// Validate checks the handle by itself, for a frame that came with the given number of descriptors: sizes fit int64 and
// add up, File is -1 or an index. Errors are [ErrProtocol].
func (h Handle) Validate(files int) error {
	switch {
	case h.Bytes > math.MaxInt64 || h.Offset > math.MaxInt64 || h.Bytes+h.Offset > math.MaxInt64:
		return fmt.Errorf("%w: handle of %d bytes at offset %d", wire.ErrProtocol, h.Bytes, h.Offset)
	case h.File < -1 || int64(h.File) >= int64(files):
		return fmt.Errorf("%w: handle names descriptor %d of %d", wire.ErrProtocol, h.File, files)
	case h.File >= 0 && len(h.Blob) > 0:
		return fmt.Errorf("%w: handle with a descriptor and %d opaque bytes", wire.ErrProtocol, len(h.Blob))
	case h.SlabBytes > math.MaxInt64 || h.SlabBytes != 0 && (h.Bytes+h.Offset > h.SlabBytes || h.Slab == 0):
		return fmt.Errorf("%w: handle of %d bytes at offset %d of slab %d of %d bytes", wire.ErrProtocol, h.Bytes, h.Offset, h.Slab, h.SlabBytes)
	case len(h.Name) > MaxHandleName:
		return fmt.Errorf("%w: the name of a handle has %d bytes", wire.ErrProtocol, len(h.Name))
	}
	return nil
}

// ValidateHandles checks every handle by itself, and that each of the message's descriptors is named by one of them and
// no more. Errors are [ErrProtocol].
func ValidateHandles(handles []Handle, files int) error {
	used := make([]bool, files)
	for i, h := range handles {
		if err := h.Validate(files); err != nil {
			return fmt.Errorf("handle %d: %w", i, err)
		}
		if h.File < 0 {
			continue
		}
		if used[h.File] {
			return fmt.Errorf("%w: two handles name descriptor %d", wire.ErrProtocol, h.File)
		}
		used[h.File] = true
	}
	for i, named := range used {
		if !named {
			return fmt.Errorf("%w: no handle names descriptor %d of %d", wire.ErrProtocol, i, files)
		}
	}
	return nil
}
