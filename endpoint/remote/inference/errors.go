package inference

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of this package, wrapped with details. They are sent as gRPC codes and HTTP statuses.
var (
	// ErrInvalid is returned for a request that contradicts itself or does not match the model.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound is returned for an unknown model, version or region.
	ErrNotFound = errors.New("not found")
	// ErrExists is returned for a region with a name that is in use.
	ErrExists = errors.New("already exists")
	// ErrTooLarge is returned for a request over a limit.
	ErrTooLarge = errors.New("too large")
	// ErrNotServed is returned for a part of the protocol that is not supported, or not available to this client.
	ErrNotServed = errors.New("not served")
	// ErrNotReady is returned for a model that was unloaded.
	ErrNotReady = errors.New("not ready")
)

// errorRow maps an error to its gRPC code and HTTP status.
type errorRow struct {
	err    error
	code   codes.Code
	status int
}

// errorRows is searched in order. Other errors of a function are internal errors.
var errorRows = []errorRow{
	{admission.ErrLimit, codes.ResourceExhausted, http.StatusTooManyRequests},
	{admission.ErrSlow, codes.DeadlineExceeded, http.StatusRequestTimeout},
	{context.Canceled, codes.Canceled, http.StatusRequestTimeout},
	{context.DeadlineExceeded, codes.DeadlineExceeded, http.StatusGatewayTimeout},
	{endpoint.ErrUnavailable, codes.Unavailable, http.StatusServiceUnavailable},
	{ErrNotReady, codes.Unavailable, http.StatusServiceUnavailable},
	{admission.ErrReadOnly, codes.PermissionDenied, http.StatusForbidden},
	{ErrExists, codes.AlreadyExists, http.StatusConflict},
	{ErrNotFound, codes.NotFound, http.StatusNotFound},
	{endpoint.ErrNoEndpoint, codes.NotFound, http.StatusNotFound},
	{ErrTooLarge, codes.ResourceExhausted, http.StatusRequestEntityTooLarge},
	{driver.ErrOutOfMemory, codes.ResourceExhausted, http.StatusInsufficientStorage},
	{endpoint.ErrLimit, codes.ResourceExhausted, http.StatusTooManyRequests},
	{ErrNotServed, codes.Unimplemented, http.StatusNotImplemented},
	{endpoint.ErrPermission, codes.PermissionDenied, http.StatusForbidden},
	{ErrInvalid, codes.InvalidArgument, http.StatusBadRequest},
	{endpoint.ErrInvalid, codes.InvalidArgument, http.StatusBadRequest},
	{tensor.ErrShape, codes.InvalidArgument, http.StatusBadRequest},
	{tensor.ErrDType, codes.InvalidArgument, http.StatusBadRequest},
}

func rowOf(err error) errorRow {
	for _, row := range errorRows {
		if errors.Is(err, row.err) {
			return row
		}
	}
	return errorRow{err, codes.Internal, http.StatusInternalServerError}
}

// grpcError returns err as sent to gRPC clients.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(rowOf(err).code, err.Error())
}

// notDecoupled returns the error for a unary request to a decoupled model.
func notDecoupled(m *model) error {
	return fmt.Errorf("%w: model '%s' is decoupled: use ModelStreamInfer", ErrNotServed, m.name)
}
