package wire

import (
	"math"
	"time"
)

// Limits bound what one peer can cost. A zero field means its default.
type Limits struct {
	// Frame is the most bytes a frame's body may have, sent or received; default 64 MiB, at most 4 GiB - 1.
	Frame int64
	// Files is the most descriptors a message may have, those in files frames included; default 4096.
	Files int
	// WriteTimeout is how long one Send may wait for a peer that does not read before the connection is closed;
	// default 10 s. It starts when the socket is found full. Negative means no limit.
	WriteTimeout time.Duration
	// HandshakeTimeout is how long [ServerHandshake] and [ClientHandshake] wait for the peer; default 5 s. Negative
	// means no limit.
	HandshakeTimeout time.Duration
	// FrameTimeout is how long a frame that has begun may take until all of it has come, files frames before it
	// included; default 30 s. However steadily it comes, Receive fails with [ErrTimeout] then, and the connection is of
	// use only to say so. Negative means no limit.
	FrameTimeout time.Duration
	// FileBudget bounds the descriptors, and BodyBudget the bytes of larger bodies, that all connections which share
	// them have received and are not done with; nil for no bound beside Files and Frame.
	FileBudget, BodyBudget *Budget
	// BusyPoll is how long a Receive that finds nothing may look again and again before it sleeps; default 30 µs. That
	// is tried where answers came as quickly before, by few goroutines of a process at a time, and never on one
	// processor. It makes small calls in a row several times as fast. Negative means never, for processes whose
	// processor time is rationed.
	BusyPoll time.Duration
	// Ring is how many bytes each of the two rings has by which small frames go where both sides have them; default
	// 32 KiB, at most 1 MiB, rounded up to a power of two. Only the size that the server says counts. Negative means
	// none, as it is on one processor, or where the environment variable SHARED_TENSOR_RING is "off". See [Limits.Rings].
	Ring int
	// RingBudget bounds the bytes of the rings of all connections that share it; nil for no bound. A connection for
	// which there is no room goes on without.
	RingBudget *Budget
}

// Defaults of [Limits].
const (
	// DefaultFrame is the bound on a frame's body, in bytes.
	DefaultFrame = 64 << 20
	// DefaultFiles is the bound on descriptors.
	DefaultFiles = 4096
	// MaxHello is how many bytes a hello may have, and whatever else comes in its place: a peer that has not introduced
	// itself gets no more memory.
	MaxHello = 64 << 10
)

const (
	defaultWriteTimeout     = 10 * time.Second
	defaultHandshakeTimeout = 5 * time.Second
	defaultFrameTimeout     = 30 * time.Second
	defaultBusyPoll         = 30 * time.Microsecond
)

func (l Limits) withDefaults() Limits {
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
