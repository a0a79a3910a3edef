package wire

import (
	"errors"
	"os"
)

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
