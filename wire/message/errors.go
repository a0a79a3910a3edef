package message

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Errors of encoding and decoding, wrapped with details.
var (
	// ErrEncoding means that a body is not one strictly encoded CBOR item of the expected type.
	ErrEncoding = errors.New("bad encoding")
	// ErrBounds means that an item exceeds the bounds of a message ([MaxDepth], [MaxPayloadDepth], [MaxElements],
	// [MaxPairs]), or has indefinite length. It is [ErrEncoding] too.
	ErrBounds = errors.New("beyond the bounds of a message")
	// ErrType means that a type has no encoding, such as a channel. It is [ErrEncoding] too.
	ErrType = errors.New("a value of this type cannot cross to another process")
	// ErrManifest means that the columns of a manifest are inconsistent.
	ErrManifest = errors.New("bad manifest")
)

// standardRows are the rows for errors of this package and of the standard library.
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
