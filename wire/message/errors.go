package message

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Errors of encoding and decoding, wrapped with what was refused.
var (
	// ErrEncoding is a body that is not one strictly encoded CBOR item of the expected type.
	ErrEncoding = errors.New("bad encoding")
	// ErrBounds is an item beyond what a message may hold ([MaxDepth], [MaxPayloadDepth], [MaxElements], [MaxPairs]),
	// or one of indefinite length. It is [ErrEncoding] too.
	ErrBounds = errors.New("beyond the bounds of a message")
	// ErrType is a value of a type that has no encoding, such as a channel. It is [ErrEncoding] too.
	ErrType = errors.New("a value of this type cannot cross to another process")
	// ErrManifest is a manifest whose columns do not agree with each other.
	ErrManifest = errors.New("bad manifest")
)

// standardRows are the errors of this package and of the standard library.
var standardRows = []CodeRow{
	{Code: CodeProtocol, Type: "protocol", Err: wire.ErrProtocol, Class: true},
	{Code: CodeSerialization, Type: "bounds", Err: ErrBounds},
	{Code: CodeSerialization, Type: "encoding", Err: ErrEncoding, Class: true},
	{Code: CodeSerialization, Type: "type", Err: ErrType},
	{Code: CodeInvalidArgument, Type: "columns", Err: ErrManifest},
	{Code: CodeResourceExhausted, Type: "too large", Err: wire.ErrTooLarge},
	{Code: CodeResourceExhausted, Type: "no room", Err: wire.ErrBudget},
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
