package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
)

// Kind says what a frame is.
type Kind uint16

// The kinds of frames. Numbers are stable.
const (
	// KindHello opens a connection, once from each side; its body is a [Hello].
	KindHello Kind = 1
	// KindRequest asks for an operation; its body is a [Request] and its ID is new on the connection.
	KindRequest Kind = 2
	// KindResponse answers the request of the same ID; its body is the result of the operation.
	KindResponse Kind = 3
	// KindError answers the request of the same ID with an [Error].
	KindError Kind = 4
	// KindCancel asks to stop the request of the same ID; its body is a [Cancel].
	KindCancel Kind = 5
	// KindEvent reports something to the request of the same ID, which stays open; its body is an [Event].
	KindEvent Kind = 6
	// KindGoodbye says that its sender asks for nothing more, or takes no more requests; only answers that it owes
	// follow. Its body is a [Goodbye].
	KindGoodbye Kind = 7
	// KindFiles carries descriptors for the next frame, which has the same ID; it has no body. [Conn] sends and
	// receives these frames by itself.
	KindFiles Kind = 8
	// KindRing says that what follows from its sender comes by the other way: in the ring where it stands in the stream
	// of the socket, over the socket where it stands in the ring. With a descriptor it offers the ring. It has no body,
	// and exists only where both sides have them ([Limits.Rings]); [Conn] sends and receives these frames by itself.
	KindRing Kind = 9
	// KindBell wakes a peer that sleeps and has something in its ring. The same holds for it.
	KindBell Kind = 10
)

var kindNames = [...]string{
	KindHello: "hello", KindRequest: "request", KindResponse: "response", KindError: "error",
	KindCancel: "cancel", KindEvent: "event", KindGoodbye: "goodbye", KindFiles: "files", KindRing: "ring", KindBell: "bell",
}

// Valid reports whether the kind is one of this package.
func (k Kind) Valid() bool { return k >= KindHello && k <= KindBell }

// carries reports whether frames of the kind are messages, rather than sent and received by a Conn itself.
func (k Kind) carries() bool { return k >= KindHello && k <= KindGoodbye }

// String is the name of the kind, or its number in words.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Frame is one message as it was received.
type Frame struct {
	// Kind says what the frame is.
	Kind Kind
	// ID is the request that the frame belongs to; 0 for hello and goodbye.
	ID uint64
	// Body is the frame's bytes, one CBOR item that is not yet checked: [Unmarshal] does that. It is the receiver's.
	Body []byte
	// Files are the descriptors that came with the frame, nil if there were none. They are the receiver's, who closes
	// them.
	Files *Files
	// Context is the sender's, of a frame that is handed over within a process and has one; nil for others.
	Context context.Context
	// Refused is why the frame's body or descriptors were given up, an [ErrBudget]; what was given up is nil. It is set
	// on connections with a [Budget] only.
	Refused error
	// Charge is what the body counts in the [Limits.BodyBudget]; the receiver releases it when it is done with the
	// body. Small bodies count nothing.
	Charge *Charge
}

// HeaderBytes is the size of a frame's header.
const HeaderBytes = 16

// MaxFilesPerFrame is how many descriptors one frame can carry: the kernel's own limit (SCM_MAX_FD).
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

// check refuses a header that no frame may have. It is called before anything is allocated for the frame.
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
