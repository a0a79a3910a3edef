package wire

import (
	"errors"
	"math"
	"os"
	"time"
)

// Limits bound the cost of one peer. A zero field means its default.
type Limits struct {
	// Frame is the maximum size of a frame's body in bytes, sent or received. Default 64 MiB, at most 4 GiB - 1.
	Frame int64
	// Files is the maximum number of descriptors of a message, including those in files frames. Default 4096.
	Files int
	// WriteTimeout limits how long one Send waits for a peer that does not read before the connection is closed.
	// Default 10 s. It starts when the socket is full. Negative means no limit.
	WriteTimeout time.Duration
	// HandshakeTimeout limits how long [ServerHandshake] and [ClientHandshake] wait for the peer. Default 5 s. Negative
	// means no limit.
	HandshakeTimeout time.Duration
	// FrameTimeout limits the time from the first to the last byte of a frame, including preceding files frames.
	// Default 30 s. Receive then fails with [ErrTimeout], however steadily bytes arrive, and the connection can only
	// report that. Negative means no limit.
	FrameTimeout time.Duration
	// Charge, if set, counts what the connection holds. It lets connections share limits. It is called with a positive
	// amount before the connection holds more, and with the negative amount when that is released. An error refuses
	// the positive amount: the body or the descriptors are discarded ([Frame.Refused]), or there is no ring. Charge
	// must not block and may be called from any goroutine.
	Charge func(of Resource, amount int64) error
	// BusyPoll limits how long a Receive that finds nothing polls before it sleeps. Default 50 µs. Polling happens only
	// if earlier answers arrived as quickly, on few goroutines of a process at a time, and never on a single processor.
	// It makes consecutive small calls several times faster. Negative disables it, for processes with rationed
	// processor time.
	BusyPoll time.Duration
	// Ring is the size in bytes of each of the two rings for small frames. Default 32 KiB, at most 1 MiB, rounded up to
	// a power of two. The server's size applies. Negative disables rings; a single processor or SHARED_TENSOR_RING=off
	// does too. With rings, small frames without descriptors pass through memory mapped by both processes. The socket wakes
	// a sleeping peer, carries everything else, and reports the end.
	Ring int
}

// Defaults of [Limits].
const (
	// DefaultFrame is the default of Limits.Frame, in bytes.
	DefaultFrame = 64 << 20
	// DefaultFiles is the default of Limits.Files.
	DefaultFiles = 4096
	// MaxHello is the maximum size in bytes of the first frame of a connection, which limits the memory of
	// unauthenticated peers.
	MaxHello = 64 << 10
)

const (
	defaultWriteTimeout     = 10 * time.Second
	defaultHandshakeTimeout = 5 * time.Second
	defaultFrameTimeout     = 30 * time.Second
	defaultBusyPoll         = 50 * time.Microsecond
)

// WithDefaults returns the limits in force: every zero field is replaced by its default, and Ring by the size of the
// ring, or by a negative number if this process uses no rings.
func (l Limits) WithDefaults() Limits {
	if l.Frame <= 0 {
		l.Frame = DefaultFrame
	}
	l.Frame = min(l.Frame, math.MaxUint32)
	if l.Files <= 0 {
		l.Files = DefaultFiles
	}
	if l.WriteTimeout == 0 {
		l.WriteTimeout = defaultWriteTimeout
	}
	if l.BusyPoll == 0 {
		l.BusyPoll = defaultBusyPoll
	}
	l.Ring = ringBytes(l.Ring)
	if l.FrameTimeout == 0 {
		l.FrameTimeout = defaultFrameTimeout
	}
	if l.HandshakeTimeout == 0 {
		l.HandshakeTimeout = defaultHandshakeTimeout
	}
	return l
}

// Errors of this package, wrapped with details. A connection closed by this process returns [net.ErrClosed]. One closed
// by the peer returns io.EOF between two frames and io.ErrUnexpectedEOF within a frame.
var (
	// ErrProtocol means that the peer violated the protocol. The connection cannot be used further.
	ErrProtocol = errors.New("protocol violation")
	// ErrTooLarge means that a frame or a set of descriptors exceeds the [Limits].
	ErrTooLarge = errors.New("larger than the limit")
	// ErrBudget means that the body or the descriptors of a message did not fit: the process has no free descriptor, or
	// [Limits.Charge] returned it.
	ErrBudget = errors.New("no room")
	// ErrNotSent means that nothing of a frame was sent because the context of [Conn.SendContext] ended while the
	// socket was full. The connection remains usable.
	ErrNotSent = errors.New("not sent")
	// ErrTimeout means that the peer did not read or answer in time. It is also an [os.ErrDeadlineExceeded].
	ErrTimeout = &timeoutError{}
)

type timeoutError struct{}

func (*timeoutError) Error() string        { return "the peer did not read or answer in time" }
func (*timeoutError) Timeout() bool        { return true }
func (*timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }
