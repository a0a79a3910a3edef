// Package message defines the messages of the protocol: the bodies of frames.
//
//	body, err := message.Marshal(message.Acquire{Name: "llm"})
//	var answer message.Acquired
//	err = message.Unmarshal(frame.Body, &answer)
//
// A request names an operation ([Op]) and contains the body of that operation. Answers, errors ([Error] with a [Code])
// and events have their own messages. Messages consist of numbers, strings and bytes; the package does not depend on
// tensors or devices. [Marshal] writes deterministic CBOR. [Unmarshal] refuses input that is not strictly encoded, too
// deep or too long before it allocates. Manifests are columns, one for each property of all tensors, because a model
// has thousands of tensors ([Manifest]). [ClientHandshake] and [ServerHandshake] run the handshake on a wire.Conn.
//
// PROTOCOL.md in package wire is the specification.
package message

import (
	"fmt"
	"math"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Protocol is the version of the protocol of this package, and OldestProtocol the oldest one that it accepts.
const (
	Protocol       uint32 = 1
	OldestProtocol uint32 = 1
)

// UUID identifies a device; zero means none. It is a byte string of exactly 16 bytes.
type UUID [16]byte

// UnmarshalCBOR decodes a byte string of exactly 16 bytes.
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
	// Features lists the optional parts of the protocol that the sender supports, sorted. Those that both sides support
	// may be used.
	Features []string `cbor:"3,keyasint,omitempty"`
	// Server identifies a server's life: a restarted server has a new id. A client leaves it empty.
	Server string `cbor:"4,keyasint,omitempty"`
	// Version is the version of the sender's program, for display.
	Version string `cbor:"5,keyasint,omitempty"`
	// PID is the sender's process id in its own namespace, for display; use [wire.Conn.Peer] for checks.
	PID int32 `cbor:"6,keyasint,omitempty"`
	// Devices lists the devices on which the sender can export or import memory.
	Devices []DeviceInfo `cbor:"7,keyasint,omitempty"`
	// Label is the sender's display name in lists of holders.
	Label string `cbor:"8,keyasint,omitempty"`
	// Catalog identifies the server's published versions. A server that adopts the versions of another one has the same
	// catalog, and every version keeps its name and number. Empty means that the catalog ends with the server.
	Catalog string `cbor:"9,keyasint,omitempty"`
}

// Published identifies the sender's published versions: its catalog, or the server itself.
func (h *Hello) Published() string {
	if h.Catalog != "" {
		return h.Catalog
	}
	return h.Server
}

// DeviceInfo describes a device to the peer. Only UUID and Type mean the same on both sides.
type DeviceInfo struct {
	// UUID names the device across processes.
	UUID UUID `cbor:"1,keyasint"`
	// Type is DLPack's number for the kind of memory: 1 host, 2 CUDA.
	Type int32 `cbor:"2,keyasint"`
	// Index is the device's ordinal in the sender's process.
	Index int32 `cbor:"3,keyasint,omitempty"`
	// Name is the vendor's name of the device.
	Name string `cbor:"4,keyasint,omitempty"`
}

// Request requests an operation.
type Request struct {
	// Op is the operation.
	Op Op `cbor:"1,keyasint"`
	// Timeout is how long the client waits for the answer; 0 means no limit. It is a duration, so clocks need not
	// agree. The server stops the work after it.
	Timeout time.Duration `cbor:"2,keyasint,omitempty"`
	// Body is the operation's message; nil if it is empty.
	Body RawMessage `cbor:"3,keyasint,omitempty"`
	// Metadata accompanies calls, tasks and streams; other operations ignore it.
	Metadata Metadata `cbor:"4,keyasint,omitempty"`
}

// Cancel requests the end of the request with the frame's ID. The request is still answered, usually with
// [CodeCanceled].
type Cancel struct {
	// Reason is one sentence for display; it may be empty.
	Reason string `cbor:"1,keyasint,omitempty"`
}

// Goodbye is the last message of its sender, which reads no further requests and answers those in flight.
type Goodbye struct {
	// Code is the reason; 0 for a normal end.
	Code Code `cbor:"1,keyasint,omitempty"`
	// Reason is one sentence for display; it may be empty.
	Reason string `cbor:"2,keyasint,omitempty"`
}

// Handle describes memory of one process that another can import. Its fields are claims that the importer validates.
type Handle struct {
	// Kind is the way to import the memory: "memfd", "cuda-fd", "cuda-ipc", "cuda-fabric", or [HandleInline].
	Kind string `cbor:"1,keyasint"`
	// Device is the device that holds the memory.
	Device UUID `cbor:"2,keyasint"`
	// Bytes is the size of the memory.
	Bytes uint64 `cbor:"3,keyasint"`
	// Offset is the byte offset of the memory in the allocation of Blob or File.
	Offset uint64 `cbor:"4,keyasint"`
	// Blob is the driver's opaque handle, for kinds without a descriptor. For [HandleInline] it is the memory itself.
	Blob []byte `cbor:"5,keyasint,omitempty"`
	// File is the index of the descriptor among those of the frame, or -1 for kinds without one.
	File int32 `cbor:"6,keyasint"`
	// Name is the owner's unguessable name of memory that it lends and that is no longer written, at most
	// [MaxHandleName] bytes; empty for other memory. A client that passes the memory to the same owner sends it.
	Name string `cbor:"7,keyasint,omitempty"`
	// Storage is the client's number of its own memory, if Version is not 0 or [FeatureKeep] was agreed. In a result it
	// is the owner's number of memory that it may send again, if [FeatureRepeat] was agreed. It is meaningful on this
	// connection only.
	Storage uint64 `cbor:"8,keyasint,omitempty"`
	// Version is the content generation of that memory: equal versions promise equal bytes. 0 promises nothing.
	Version uint64 `cbor:"9,keyasint,omitempty"`
	// Slab numbers memory of a result that the owner reuses after the client has returned it, if [FeaturePool] was
	// agreed: the memory is its first Bytes. 0 for other memory.
	Slab uint64 `cbor:"10,keyasint,omitempty"`
	// SlabBytes is the size of that slab if it has a descriptor; 0 if the client has mapped it.
	SlabBytes uint64 `cbor:"11,keyasint,omitempty"`
}

// FeaturePool is the feature of servers that reuse the memory of results ([Handle.Slab]), and of clients that keep it
// mapped and return it ([Call.SlabsReturned], [OpReturnSlabs]).
const FeaturePool = "pool"

// FeatureRepeat is the feature of servers that number the memory of results that they may send again, such as cached ones
// ([Handle.Storage]), and of clients that keep it mapped. Both also have [FeaturePool], whose messages return the numbers.
const FeatureRepeat = "repeat"

// FeatureRing is the feature of peers that support rings for small frames beside the socket ([wire.Limits.Rings]). The
// handshake functions set them up.
const FeatureRing = "ring"

// FeatureKeep is the feature of servers that keep memory of arguments mapped. A handle in a call with a Storage
// requests it, and a later handle with the same Storage and neither File nor Blob refers to the kept memory
// ([Handle.Kept]).
const FeatureKeep = "keep"

// FeatureInline is the feature of peers that accept small memory of arguments and results within the frame
// ([HandleInline]).
const FeatureInline = "inline"

const (
	// HandleInline is the kind of a handle whose Blob is the content of host memory. The receiver copies it.
	HandleInline = "inline"
	// MaxInline is the maximum size in bytes of the memory of all such handles of a message.
	MaxInline = 16 << 10
)

// Inline reports whether the handle contains the memory itself.
func (h *Handle) Inline() bool { return h.Kind == HandleInline }

// Kept reports whether the handle refers to memory that the receiver kept, by its number alone.
func (h Handle) Kept() bool { return h.Storage != 0 && h.File < 0 && len(h.Blob) == 0 }

// MaxHandleName is the maximum length of a handle's name in bytes.
const MaxHandleName = 64

// Validate checks the handle for a frame with the given number of descriptors: sizes fit int64 and add up, File is -1
// or an index. Errors are [ErrProtocol].
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
	case h.Inline() && (h.Bytes != uint64(len(h.Blob)) || h.Offset != 0 || h.File != -1 || h.Storage != 0 || h.Version != 0 || h.Slab != 0):
		return fmt.Errorf("%w: handle of %d bytes at offset %d with %d bytes within the frame", wire.ErrProtocol, h.Bytes, h.Offset, len(h.Blob))
	}
	return nil
}

// ValidateHandles checks every handle, the sum of the memory within the frame, and that exactly one handle names each
// descriptor of the message. Errors are [ErrProtocol].
func ValidateHandles(handles []Handle, files int) error {
	used := make([]bool, files)
	inline := 0
	for i, h := range handles {
		if err := h.Validate(files); err != nil {
			return fmt.Errorf("handle %d: %w", i, err)
		}
		if h.Inline() {
			if inline += len(h.Blob); inline > MaxInline {
				return fmt.Errorf("%w: over %d bytes of memory within the frame", wire.ErrProtocol, MaxInline)
			}
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
