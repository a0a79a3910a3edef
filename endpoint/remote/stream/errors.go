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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pump"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of this package, wrapped with what was wrong. Clients get them by the code of the gRPC status.
var (
	// ErrInvalid is a chunk, a description or a request that makes no sense.
	ErrInvalid = errors.New("invalid transfer")
	// ErrLimit is a transfer beyond one of the Limits.
	ErrLimit = errors.New("limit reached")
	// ErrChecksum is a chunk whose bytes are not those that were sent.
	ErrChecksum = errors.New("wrong checksum")
	// ErrIncomplete is a transfer that ended before its tensors were complete.
	ErrIncomplete = errors.New("incomplete")
	// ErrNotFound is a set or tensor that the server does not have.
	ErrNotFound = endpoint.ErrNotFound
	// ErrNotServed is a call for which the server has no hook.
	ErrNotServed = errors.New("not served here")
	// ErrStalled is a peer that did not read or send for too long.
	ErrStalled = pump.ErrStalled
	// ErrUnknown is a transfer of which the client did not hear whether it was taken: all was sent, and the connection
	// broke.
	ErrUnknown = errors.New("the outcome is unknown")
)

// codesOf are the gRPC codes of errors, the first that fits.
var codesOf = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{ErrStalled, codes.DeadlineExceeded},
	{ErrChecksum, codes.DataLoss},
	{ErrLimit, codes.ResourceExhausted},
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

// statusOf is the error as a gRPC status: what its sentinels say, else Internal.
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

// RemoteError is an error that the server answered with. It answers errors.Is for the sentinel of this package that the
// server's status stands for, and status.FromError gives the status itself.
type RemoteError struct {
	// Op is what was asked, such as "put \"silero\"".
	Op  string
	err error
}

// Error is the operation and the server's words.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Op, strings.ToLower(status.Code(e.err).String()), status.Convert(e.err).Message())
}

// GRPCStatus is the server's status.
func (e *RemoteError) GRPCStatus() *status.Status { return status.Convert(e.err) }

// Unwrap returns the status error.
func (e *RemoteError) Unwrap() error { return e.err }

// Is finds the sentinels by the code.
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
