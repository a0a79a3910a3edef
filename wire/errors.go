package wire

import (
	"context"
	"errors"
	"net"
	"os"
)

// Errors of this package, wrapped with what was refused. A connection that was closed on this side answers
// [net.ErrClosed]; one that the peer closed answers io.EOF between two frames and io.ErrUnexpectedEOF within one.
var (
	// ErrProtocol is a peer that broke the protocol. The connection is of no use any more.
	ErrProtocol = errors.New("protocol violation")
	// ErrTooLarge is a frame or a set of descriptors beyond the [Limits].
	ErrTooLarge = errors.New("larger than the limit")
	// ErrBudget is a message for whose body or descriptors there was no room: a [Budget] is used up, or this process has no descriptor left.
	ErrBudget = errors.New("no room")
	// ErrNotSent is a frame of which nothing was sent, because the context of [Conn.SendContext] ended while the socket was full. The
	// connection goes on.
	ErrNotSent = errors.New("not sent")
	// ErrEncoding is a body that is not one strictly encoded CBOR item of the expected type.
	ErrEncoding = errors.New("bad encoding")
	// ErrBounds is an item beyond what a message may hold ([MaxDepth], [MaxPayloadDepth], [MaxElements], [MaxPairs]), or one of indefinite
	// length. It is [ErrEncoding] too.
	ErrBounds = errors.New("beyond the bounds of a message")
	// ErrType is a value of a type that has no encoding, such as a channel. It is [ErrEncoding] too.
	ErrType = errors.New("a value of this type cannot cross to another process")
	// ErrManifest is a manifest whose columns do not agree with each other.
	ErrManifest = errors.New("bad manifest")
	// ErrTimeout is a peer that did not read or answer in time. It is [os.ErrDeadlineExceeded] too.
	ErrTimeout = &timeoutError{}
)

type timeoutError struct{}

func (*timeoutError) Error() string        { return "the peer did not read or answer in time" }
func (*timeoutError) Timeout() bool        { return true }
func (*timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// standardRows are the errors of this package and of the standard library.
var standardRows = []CodeRow{
	{Code: CodeProtocol, Type: "protocol", Err: ErrProtocol, Class: true},
	{Code: CodeSerialization, Type: "bounds", Err: ErrBounds},
	{Code: CodeSerialization, Type: "encoding", Err: ErrEncoding, Class: true},
	{Code: CodeSerialization, Type: "type", Err: ErrType},
	{Code: CodeInvalidArgument, Type: "columns", Err: ErrManifest},
	{Code: CodeResourceExhausted, Type: "too large", Err: ErrTooLarge},
	{Code: CodeResourceExhausted, Type: "no room", Err: ErrBudget},
	{Code: CodeCanceled, Type: "canceled", Err: context.Canceled, Class: true},
	{Code: CodeDeadlineExceeded, Type: "deadline exceeded", Err: context.DeadlineExceeded, Class: true},
	{Code: CodeDeadlineExceeded, Type: "timeout", Err: os.ErrDeadlineExceeded},
	{Code: CodeUnsupported, Type: "unsupported", Err: errors.ErrUnsupported, Class: true},
	{Code: CodeNotFound, Type: "not exist", Err: os.ErrNotExist},
	{Code: CodeAlreadyExists, Type: "exist", Err: os.ErrExist},
	{Code: CodePermissionDenied, Type: "permission", Err: os.ErrPermission, Class: true},
	{Code: CodeClosed, Type: "closed", Err: os.ErrClosed, Class: true},
	{Code: CodeClosed, Type: "connection closed", Err: net.ErrClosed},
}
