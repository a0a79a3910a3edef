package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of this package, wrapped with details. Clients receive them as codes of gRPC statuses.
var (
	// ErrInvalid reports an invalid chunk, description or request.
	ErrInvalid = errors.New("invalid transfer")
	// ErrLimit reports a transfer over one of the Limits.
	ErrLimit = errors.New("limit reached")
	// ErrChecksum reports a chunk whose bytes were damaged.
	ErrChecksum = errors.New("wrong checksum")
	// ErrIncomplete reports a transfer that ended before its tensors were complete.
	ErrIncomplete = errors.New("incomplete")
	// ErrNotFound reports a set or tensor that does not exist.
	ErrNotFound = endpoint.ErrNotFound
	// ErrNotServed reports a call for which the server has no hook.
	ErrNotServed = errors.New("not served here")
	// ErrStalled reports a peer that neither read nor sent for too long.
	ErrStalled = bulk.ErrStalled
	// errAgain reports a Put with an id that another call is passing to the sink.
	errAgain = errors.New("another call is completing this transfer: try again")
	// ErrUnknown reports a transfer with an unknown outcome: everything was sent, and the connection broke before the
	// answer.
	ErrUnknown = errors.New("the outcome is unknown")
)

// codesOf maps errors to gRPC codes. The first match is used.
var codesOf = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{ErrStalled, codes.DeadlineExceeded},
	{admission.ErrSlow, codes.DeadlineExceeded},
	{ErrChecksum, codes.DataLoss},
	{ErrLimit, codes.ResourceExhausted},
	{errAgain, codes.Unavailable},
	{torchsave.ErrLimit, codes.ResourceExhausted},
	{driver.ErrOutOfMemory, codes.ResourceExhausted},
	{endpoint.ErrLimit, codes.ResourceExhausted},
	{ErrIncomplete, codes.FailedPrecondition},
	{ErrNotFound, codes.NotFound},
	{ErrNotServed, codes.Unimplemented},
	{endpoint.ErrUnavailable, codes.Unavailable},
	{endpoint.ErrPermission, codes.PermissionDenied},
	{ErrInvalid, codes.InvalidArgument},
	{endpoint.ErrInvalid, codes.InvalidArgument},
	{torchsave.ErrFormat, codes.InvalidArgument},
	{torchsave.ErrRefused, codes.InvalidArgument},
	{tensor.ErrShape, codes.InvalidArgument},
	{tensor.ErrDType, codes.InvalidArgument},
	{tensor.ErrOverflow, codes.InvalidArgument},
}

// statusOf converts an error to a gRPC status: the code of its sentinel, otherwise Internal.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, c := range codesOf {
		if errors.Is(err, c.err) {
			return status.Error(c.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

// RemoteError is an error that the server returned. errors.Is matches the sentinel of this package for the status code,
// and status.FromError returns the status.
type RemoteError struct {
	// Op is the operation, such as "put \"silero\"".
	Op  string
	err error
}

// Error returns the operation and the server's message.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Op, strings.ToLower(status.Code(e.err).String()), status.Convert(e.err).Message())
}

// GRPCStatus returns the server's status.
func (e *RemoteError) GRPCStatus() *status.Status { return status.Convert(e.err) }

// Unwrap returns the status error.
func (e *RemoteError) Unwrap() error { return e.err }

// Is matches the sentinels by code.
func (e *RemoteError) Is(target error) bool {
	code := status.Code(e.err)
	switch target {
	case ErrInvalid, ErrLimit, ErrChecksum, ErrIncomplete, ErrNotFound, ErrNotServed, context.Canceled, context.DeadlineExceeded,
		endpoint.ErrUnavailable, endpoint.ErrPermission:
	default:
		return false
	}
	for _, c := range codesOf {
		if c.err == target {
			return c.code == code
		}
	}
	return false
}

func remoteError(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return &RemoteError{Op: op, err: err}
	}
	return fmt.Errorf("%s: %w", op, err)
}
