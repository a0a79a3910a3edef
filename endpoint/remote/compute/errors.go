package compute

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pump"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of this package, wrapped with what was wrong. They travel as codes of gRPC.
var (
	// ErrInvalid is a request whose data, shape and metadata do not fit each other.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound is a model_id that the server does not have.
	ErrNotFound = errors.New("no such function")
	// ErrOverloaded is a server that has no place for another request. The function was not run.
	ErrOverloaded = errors.New("too many requests wait")
	// ErrNotReady is a server that is being set up, could not be, or is shutting down. The function was not run.
	ErrNotReady = errors.New("not ready")
	// ErrTooLarge is a tensor beyond the limit, or one that needs ComputeStream.
	ErrTooLarge = errors.New("too large")
	// ErrNotServed is a request for training or with a cache of generation.
	ErrNotServed = errors.New("not served here")
	// ErrPanic is a function that panicked.
	ErrPanic = errors.New("the function panicked")
	// ErrUnknown is a call of a function that is not idempotent, of which the client did not hear whether the function
	// was run.
	ErrUnknown = errors.New("it is not known whether the function was run")
	// ErrClosed is a client or server that was closed.
	ErrClosed = errors.New("closed")
)

// codesOf are the gRPC codes of errors, the first that fits. What a function returns is Internal unless it is one of
// them.
var codesOf = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{pump.ErrStalled, codes.DeadlineExceeded},
	{ErrOverloaded, codes.Unavailable},
	{ErrNotReady, codes.Unavailable},
	{endpoint.ErrUnavailable, codes.Unavailable},
	{ErrNotFound, codes.NotFound},
	{endpoint.ErrNoEndpoint, codes.NotFound},
	{ErrTooLarge, codes.ResourceExhausted},
	{driver.ErrOutOfMemory, codes.ResourceExhausted},
	{endpoint.ErrLimit, codes.ResourceExhausted},
	{ErrNotServed, codes.Unimplemented},
	{endpoint.ErrPermission, codes.PermissionDenied},
	{ErrInvalid, codes.InvalidArgument},
	{endpoint.ErrInvalid, codes.InvalidArgument},
	{tensor.ErrShape, codes.InvalidArgument},
	{tensor.ErrDType, codes.InvalidArgument},
}

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
