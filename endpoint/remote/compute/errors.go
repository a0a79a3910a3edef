package compute

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of this package, wrapped with details. They are sent as gRPC codes.
var (
	// ErrInvalid is returned for a request with data, shape and metadata that contradict each other.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound is returned for a model_id that the server does not have.
	ErrNotFound = errors.New("no such function")
	// ErrOverloaded is returned if the server's queue is full. The function did not run.
	ErrOverloaded = errors.New("too many requests wait")
	// ErrNotReady is returned if the server is being set up, failed to set up, or is shutting down. The function did
	// not run.
	ErrNotReady = errors.New("not ready")
	// ErrTooLarge is returned for a tensor that exceeds the limit or needs ComputeStream.
	ErrTooLarge = errors.New("too large")
	// ErrNotServed is returned for a request for training or with a generation cache.
	ErrNotServed = errors.New("not served here")
	// ErrPanic is returned if the function panicked.
	ErrPanic = errors.New("the function panicked")
	// ErrUnknown is returned if a function that is not idempotent may or may not have run.
	ErrUnknown = errors.New("unknown whether the function ran")
	// ErrClosed is returned by a closed client or server.
	ErrClosed = errors.New("closed")
)

// codesOf maps errors to gRPC codes; the first match counts. Other errors of a function are Internal.
var codesOf = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{bulk.ErrStalled, codes.DeadlineExceeded},
	{admission.ErrSlow, codes.DeadlineExceeded},
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
