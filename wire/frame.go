package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
)

// Kind is the kind of a frame.
type Kind uint16

// The kinds of frames. Their numbers are stable.
const (
	// KindHello opens a connection, once from each side. Its body is a [Hello].
	KindHello Kind = 1
	// KindRequest requests an operation. Its body is a [Request], and its ID is new on the connection.
	KindRequest Kind = 2
	// KindResponse answers the request of the same ID. Its body is the result of the operation.
	KindResponse Kind = 3
	// KindError answers the request of the same ID with an [Error].
	KindError Kind = 4
	// KindCancel requests that the request of the same ID is stopped. Its body is a [Cancel].
	KindCancel Kind = 5
	// KindEvent reports an event to the open request of the same ID. Its body is an [Event].
	KindEvent Kind = 6
	// KindGoodbye announces that its sender sends no more requests, or accepts no more. Only outstanding answers
	// follow. Its body is a [Goodbye].
	KindGoodbye Kind = 7
	// KindFiles carries descriptors for the next frame, which has the same ID. It has no body. [Conn] sends and
	// receives these frames internally.
	KindFiles Kind = 8
	// KindRing switches the sender's stream between the ring and the socket: in the ring it means that the socket
	// follows, on the socket that the ring follows. With a descriptor it offers the ring. It has no body and requires
	// rings on both sides ([Limits.Ring]). [Conn] sends and receives these frames internally.
	KindRing Kind = 9
	// KindBell wakes a peer that sleeps while its ring has data. It requires rings on both sides, and [Conn] handles it
	// internally.
	KindBell Kind = 10
)

var kindNames = [...]string{
	KindHello: "hello", KindRequest: "request", KindResponse: "response", KindError: "error",
	KindCancel: "cancel", KindEvent: "event", KindGoodbye: "goodbye", KindFiles: "files", KindRing: "ring", KindBell: "bell",
}

// Valid reports whether k is a kind of this package.
func (k Kind) Valid() bool { return k >= KindHello && k <= KindBell }

// carries reports whether frames of the kind are messages, as opposed to frames that Conn handles internally.
func (k Kind) carries() bool { return k >= KindHello && k <= KindGoodbye }

// String returns the name of the kind, or its number as text.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Frame is one received message.
type Frame struct {
	// Kind is the kind of the frame.
	Kind Kind
	// ID identifies the request that the frame belongs to; 0 for hello and goodbye.
	ID uint64
	// Body is one CBOR item, not yet validated: [Unmarshal] does that. The receiver owns it.
	Body []byte
	// Files holds the descriptors of the frame, or is nil. The receiver owns and closes them.
	Files *Files
	// Context is the sender's context if the frame was passed within the process, otherwise nil.
	Context context.Context
	// Refused is the error of [Limits.Charge] for which the frame's body or descriptors were discarded. The discarded
	// field is nil. It is an [ErrBudget] if the process had no free descriptor.
	Refused error
	// Release ends the frame's charge. It is nil unless [Limits.Charge] counted the body or descriptors. The receiver
	// calls it once when it no longer needs the body and has no duplicates of the descriptors. Descriptors count until
	// Files is closed too.
	Release func()
}

// HeaderBytes is the size of a frame's header.
const HeaderBytes = 16

// MaxFilesPerFrame is the maximum number of descriptors in one frame, the kernel's SCM_MAX_FD.
const MaxFilesPerFrame = 253

// header is the fixed part of a frame: length u32, kind u16, files u16, id u64, all big-endian.
type header struct {
	length uint32
	kind   Kind
	files  uint16
	id     uint64
}

func (h header) put(b []byte) {
	binary.BigEndian.PutUint32(b[0:], h.length)
	binary.BigEndian.PutUint16(b[4:], uint16(h.kind))
	binary.BigEndian.PutUint16(b[6:], h.files)
	binary.BigEndian.PutUint64(b[8:], h.id)
}

func parseHeader(b []byte) header {
	return header{
		length: binary.BigEndian.Uint32(b[0:]),
		kind:   Kind(binary.BigEndian.Uint16(b[4:])),
		files:  binary.BigEndian.Uint16(b[6:]),
		id:     binary.BigEndian.Uint64(b[8:]),
	}
}

// check refuses an invalid header before anything is allocated for the frame.
func (h header) check(limits *Limits) error {
	switch {
	case !h.kind.Valid():
		return fmt.Errorf("%w: unknown frame kind %d", ErrProtocol, uint16(h.kind))
	case int64(h.length) > limits.Frame:
		return fmt.Errorf("%w: %w: %s frame of %d bytes, the limit is %d", ErrProtocol, ErrTooLarge, h.kind, h.length, limits.Frame)
	case h.files > MaxFilesPerFrame:
		return fmt.Errorf("%w: %s frame announces %d descriptors, a frame carries at most %d", ErrProtocol, h.kind, h.files, MaxFilesPerFrame)
	case h.kind == KindFiles && (h.length != 0 || h.files == 0):
		return fmt.Errorf("%w: files frame with %d bytes and %d descriptors", ErrProtocol, h.length, h.files)
	case h.kind == KindRing && (h.length != 0 || h.files > 1 || h.id != 0), h.kind == KindBell && (h.length != 0 || h.files != 0 || h.id != 0):
		return fmt.Errorf("%w: %s frame of %d with %d bytes and %d descriptors", ErrProtocol, h.kind, h.id, h.length, h.files)
	case h.kind.carries() && h.length == 0:
		return fmt.Errorf("%w: %s frame without a body", ErrProtocol, h.kind)
	}
	return nil
}
