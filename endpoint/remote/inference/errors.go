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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of this package, wrapped with what was wrong. They travel as codes of gRPC and as statuses of HTTP.
var (
	// ErrInvalid is a request whose parts do not fit each other or the model.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound is a model, a version or a region that is not there.
	ErrNotFound = errors.New("not found")
	// ErrExists is a region whose name is taken.
	ErrExists = errors.New("already exists")
	// ErrTooLarge is a request beyond a limit.
	ErrTooLarge = errors.New("too large")
	// ErrNotServed is a part of the protocol that is not served here, or not to this client.
	ErrNotServed = errors.New("not served")
	// ErrNotReady is a model that was unloaded.
	ErrNotReady = errors.New("not ready")
)

// errorRow says what an error is on either transport.
type errorRow struct {
	err    error
	code   codes.Code
	status int
}

// errorRows are looked through in order. What a function returned is an internal error unless it is one of them.
var errorRows = []errorRow{
	{context.Canceled, codes.Canceled, http.StatusRequestTimeout},
	{context.DeadlineExceeded, codes.DeadlineExceeded, http.StatusGatewayTimeout},
	{endpoint.ErrUnavailable, codes.Unavailable, http.StatusServiceUnavailable},
	{ErrNotReady, codes.Unavailable, http.StatusServiceUnavailable},
	{gateway.ErrReadOnly, codes.PermissionDenied, http.StatusForbidden},
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

// grpcError is err as a caller over gRPC gets it.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(rowOf(err).code, err.Error())
}

// notDecoupled is the error of a unary request to a model whose results come one by one.
func notDecoupled(m *model) error {
	return fmt.Errorf("%w: model '%s' is decoupled: its results come one by one, over ModelStreamInfer", ErrNotServed, m.name)
}
