package wire

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
)

// Errors of this package, wrapped with what was refused. A connection that was closed on this side answers
// [net.ErrClosed]; one that the peer closed answers io.EOF between two frames and io.ErrUnexpectedEOF within one.
var (
	// ErrProtocol is a peer that broke the protocol. The connection is of no use any more.
	ErrProtocol = errors.New("protocol violation")
	// ErrTooLarge is a frame or a set of descriptors beyond the [Limits].
	ErrTooLarge = errors.New("larger than the limit")
	// ErrEncoding is a body that is not one strictly encoded CBOR item of the expected type.
	ErrEncoding = errors.New("bad encoding")
	// ErrManifest is a manifest whose columns do not agree with each other.
	ErrManifest = errors.New("bad manifest")
	// ErrTimeout is a peer that did not read or answer in time. It is [os.ErrDeadlineExceeded] too.
	ErrTimeout = &timeoutError{}
)

type timeoutError struct{}

func (*timeoutError) Error() string        { return "the peer did not read or answer in time" }
func (*timeoutError) Timeout() bool        { return true }
func (*timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// Error is an error as it crosses to another process: the body of a frame of [KindError].
type Error struct {
	// Code is the class of the error.
	Code Code `cbor:"1,keyasint"`
	// Message is one sentence for people.
	Message string `cbor:"2,keyasint"`
	// Type names the error in the sender's own terms, such as a Go type; it may be empty.
	Type string `cbor:"3,keyasint,omitempty"`
	// Data is one CBOR item with details that the code defines; it may be nil.
	Data RawMessage `cbor:"4,keyasint,omitempty"`
}

// Error is the message, or the name of the code where there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Message
}

// Is makes the error answer for its [Code], and for an *Error that has the same code and no message.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return t.Code == e.Code && t.Message == ""
	}
	return false
}

// CodeRow ties a code to the error by which Go code knows it.
type CodeRow struct {
	// Code is the class that crosses.
	Code Code
	// Err is the sentinel on both sides.
	Err error
}

// CodeTable translates between errors and codes. Rows are tried in order; the first that matches wins. It is immutable.
type CodeTable struct{ rows []CodeRow }

// NewCodeTable makes a table of the given rows, followed by those for the errors of this package and of the standard
// library: cancellation, deadlines, permission, closed things, unsupported features.
func NewCodeTable(rows ...CodeRow) *CodeTable {
	standard := []CodeRow{
		{CodeProtocol, ErrProtocol},
		{CodeSerialization, ErrEncoding},
		{CodeInvalidArgument, ErrManifest},
		{CodeResourceExhausted, ErrTooLarge},
		{CodeCanceled, context.Canceled},
		{CodeDeadlineExceeded, context.DeadlineExceeded},
		{CodeDeadlineExceeded, os.ErrDeadlineExceeded},
		{CodeUnsupported, errors.ErrUnsupported},
		{CodePermissionDenied, os.ErrPermission},
		{CodeClosed, os.ErrClosed},
		{CodeClosed, net.ErrClosed},
	}
	return &CodeTable{rows: append(slices.Clone(rows), standard...)}
}

// Encode returns err as it is sent. An *Error or a Code in its chain keeps its code, type and data; else the first row
// decides, and an error that no row knows is [CodeInternal]. The message is the text of the whole chain. Encode of nil is
// nil.
func (t *CodeTable) Encode(err error) *Error {
	if err == nil {
		return nil
	}
	out := &Error{Code: CodeInternal, Message: err.Error()}
	var e *Error
	var c Code
	switch {
	case errors.As(err, &e):
		out.Code, out.Type, out.Data = e.Code, e.Type, e.Data
	case errors.As(err, &c):
		out.Code = c
	default:
		for _, row := range t.rows {
			if errors.Is(err, row.Err) {
				out.Code = row.Code
				break
			}
		}
	}
	return out
}

// Decode returns a received error as one that answers errors.Is for every sentinel its code stands for, and errors.As
// for *Error. Its text is the peer's message. Decode of nil is nil.
func (t *CodeTable) Decode(e *Error) error {
	if e == nil {
		return nil
	}
	r := &remoteError{err: e}
	for _, row := range t.rows {
		if row.Code == e.Code {
			r.sentinels = append(r.sentinels, row.Err)
		}
	}
	if len(r.sentinels) == 0 {
		return e
	}
	return r
}

// remoteError is an *Error and the sentinels of its code.
type remoteError struct {
	err       *Error
	sentinels []error
}

func (r *remoteError) Error() string { return r.err.Error() }

func (r *remoteError) Unwrap() []error { return append([]error{r.err}, r.sentinels...) }
