package wire

import (
	"errors"
	"os"
)

// Errors of this package, wrapped with what was refused. A connection that was closed on this side answers
// [net.ErrClosed]; one that the peer closed answers io.EOF between two frames and io.ErrUnexpectedEOF within one.
var (
	// ErrProtocol is a peer that broke the protocol. The connection is of no use any more.
	ErrProtocol = errors.New("protocol violation")
	// ErrTooLarge is a frame or a set of descriptors beyond the [Limits].
	ErrTooLarge = errors.New("larger than the limit")
	// ErrBudget is a message for whose body or descriptors there was no room: a [Budget] is used up, or this process
	// has no descriptor left.
	ErrBudget = errors.New("no room")
	// ErrNotSent is a frame of which nothing was sent, because the context of [Conn.SendContext] ended while the socket
	// was full. The connection goes on.
	ErrNotSent = errors.New("not sent")
	// ErrTimeout is a peer that did not read or answer in time. It is [os.ErrDeadlineExceeded] too.
	ErrTimeout = &timeoutError{}
)

type timeoutError struct{}

func (*timeoutError) Error() string        { return "the peer did not read or answer in time" }
func (*timeoutError) Timeout() bool        { return true }
func (*timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }
