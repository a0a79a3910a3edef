package compute

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// Errors of this package, wrapped with details. They are sent as gRPC codes.
var (
	// ErrInvalid is returned for a request with data, shape and metadata that contradict each other.
	ErrInvalid = admission.NewError(admission.Invalid, "invalid request")
	// ErrNotFound is returned for a model_id that the server does not have.
	ErrNotFound = admission.NewError(admission.NotFound, "no such function")
	// ErrOverloaded is returned if the server's queue is full. The function did not run.
	ErrOverloaded = admission.NewError(admission.Unavailable, "too many requests wait")
	// ErrNotReady is returned if the server is being set up, failed to set up, or is shutting down. The function did
	// not run.
	ErrNotReady = admission.NewError(admission.Unavailable, "not ready")
	// ErrTooLarge is returned for a tensor that exceeds the limit or needs ComputeStream.
	ErrTooLarge = admission.NewError(admission.TooLarge, "too large")
	// ErrNotServed is returned for a request for training or with a generation cache.
	ErrNotServed = admission.NewError(admission.NotServed, "not served here")
	// ErrPanic is returned if the function panicked.
	ErrPanic = errors.New("the function panicked")
	// ErrUnknown is returned if a function that is not idempotent may or may not have run.
	ErrUnknown = errors.New("unknown whether the function ran")
	// ErrClosed is returned by a closed client or server.
	ErrClosed = errors.New("closed")
)
