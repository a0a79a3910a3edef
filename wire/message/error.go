package message

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Limits of an error, so that every error can be sent. The sender omits what exceeds them.
const (
	// MaxErrorMessage is the maximum size of an error's message in bytes.
	MaxErrorMessage = 4096
	// MaxErrorType is the maximum size of its type in bytes.
	MaxErrorType = 128
	// MaxErrorData is the maximum size of its data in bytes, including causes.
	MaxErrorData = 32 << 10
	// MaxErrorCauses is the maximum number of nested causes.
	MaxErrorCauses = 3
)

// Error is an error on the wire: the body of a frame of [KindError].
type Error struct {
	// Code is the class of the error.
	Code Code `cbor:"1,keyasint"`
	// Message is one sentence for display.
	Message string `cbor:"2,keyasint"`
	// Type distinguishes errors of one code: a word of the table in PROTOCOL.md, or the sender's name for it, such as a
	// Go type. It may be empty.
	Type string `cbor:"3,keyasint,omitempty"`
	// Data is one CBOR item with details, usually an [ErrorDetails]; it may be nil.
	Data RawMessage `cbor:"4,keyasint,omitempty"`
}

// Error returns the message, or the name of the code if the message is empty.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Message
}

// Is reports whether target is the error's [Code], or an *Error with the same code and no message.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return t.Code == e.Code && t.Message == ""
	}
	return false
}

// Details decodes Data as [ErrorDetails] as far as possible.
func (e *Error) Details() ErrorDetails {
	var d ErrorDetails
	if len(e.Data) == 0 || Unmarshal(e.Data, &d) != nil {
		return ErrorDetails{}
	}
	return d
}

// ApplicationError is the data of an error with [CodeApplication].
type ApplicationError struct {
	// Message is the program's text, without prefixes added on the way.
	Message string `cbor:"1,keyasint,omitempty"`
	// Data is one CBOR item defined by the program; it may be nil.
	Data RawMessage `cbor:"2,keyasint,omitempty"`
}

// ErrorDetails holds information about an error beyond its class and message.
type ErrorDetails struct {
	// Classes lists further classes of the error. For example, an error that memory cannot be shared may also have the
	// class of an unsupported device.
	Classes []ErrorClass `cbor:"1,keyasint,omitempty"`
	// Cause is the reason why a task failed or was cancelled; nil for other errors.
	Cause *Error `cbor:"2,keyasint,omitempty"`
	// Object is the missing managed object, for [CodeStaleHandle].
	Object string `cbor:"3,keyasint,omitempty"`
	// Server is the server that held it.
	Server string `cbor:"4,keyasint,omitempty"`
	// Reason is "object_missing" or "server_mismatch".
	Reason string `cbor:"5,keyasint,omitempty"`
	// Detail is additional text for display.
	Detail string `cbor:"6,keyasint,omitempty"`
}

// empty reports whether no field is set.
func (d *ErrorDetails) empty() bool {
	return len(d.Classes) == 0 && d.Cause == nil && d.Object == "" && d.Server == "" && d.Reason == "" && d.Detail == ""
}

// ErrorClass is a class of an error.
type ErrorClass struct {
	// Code is the class.
	Code Code `cbor:"1,keyasint"`
	// Type is that of [Error].
	Type string `cbor:"2,keyasint,omitempty"`
}

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
