package admission

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Kind is a class of errors. Each protocol of the gateway has a code for it.
type Kind struct {
	// GRPC, HTTP and RPC are the codes of gRPC, HTTP and JSON-RPC.
	GRPC codes.Code
	HTTP int
	RPC  int
}

// Kinds of errors. The JSON-RPC codes from -32001 to -32003 are those of shared-tensor 0.1.
var (
	Canceled        = Kind{codes.Canceled, http.StatusRequestTimeout, -32008}
	Timeout         = Kind{codes.DeadlineExceeded, http.StatusGatewayTimeout, -32008}
	Slow            = Kind{codes.DeadlineExceeded, http.StatusRequestTimeout, -32008}
	Unavailable     = Kind{codes.Unavailable, http.StatusServiceUnavailable, -32005}
	Unauthenticated = Kind{codes.Unauthenticated, http.StatusUnauthorized, -32007}
	Refused         = Kind{codes.PermissionDenied, http.StatusForbidden, -32007}
	NotFound        = Kind{codes.NotFound, http.StatusNotFound, -32004}
	NoFunction      = Kind{codes.NotFound, http.StatusNotFound, -32001}
	Exists          = Kind{codes.AlreadyExists, http.StatusConflict, -32602}
	Invalid         = Kind{codes.InvalidArgument, http.StatusBadRequest, -32602}
	Serialization   = Kind{codes.InvalidArgument, http.StatusUnprocessableEntity, -32003}
	Incomplete      = Kind{codes.FailedPrecondition, http.StatusPreconditionFailed, -32602}
	Precondition    = Kind{codes.FailedPrecondition, http.StatusPreconditionFailed, -32602}
	Damaged         = Kind{codes.DataLoss, http.StatusBadRequest, -32602}
	Limit           = Kind{codes.ResourceExhausted, http.StatusTooManyRequests, -32006}
	TooLarge        = Kind{codes.ResourceExhausted, http.StatusRequestEntityTooLarge, -32006}
	NoMemory        = Kind{codes.ResourceExhausted, http.StatusInsufficientStorage, -32006}
	NotServed       = Kind{codes.Unimplemented, http.StatusNotImplemented, -32601}
	TaskState       = Kind{codes.FailedPrecondition, http.StatusConflict, -32009}
	Internal        = Kind{codes.Internal, http.StatusInternalServerError, -32603}
)

// kindError is an error of a kind.
type kindError struct {
	kind Kind
	text string
}

// Error implements error.
func (e *kindError) Error() string { return e.text }

// NewError returns an error of a kind, for errors that one package defines.
func NewError(kind Kind, text string) error { return &kindError{kind, text} }

// kinds has the errors that several packages return, in the order in which they are matched. Errors of [NewError] are
// matched at the row without an error. A cancelled task also matches context.Canceled, so tasks come first.
var kinds = []struct {
	err  error
	kind Kind
}{
	{task.ErrNotFinished, TaskState},
	{task.ErrFailed, TaskState},
	{task.ErrCancelled, TaskState},
	{context.Canceled, Canceled},
	{context.DeadlineExceeded, Timeout},
	{nil, Kind{}},
	{rights.ErrUnauthenticated, Unauthenticated},
	{rights.ErrReadOnly, Refused},
	{rights.ErrRight, Refused},
	{endpoint.ErrNoEndpoint, NoFunction},
	{endpoint.ErrUnavailable, Unavailable},
	{task.ErrNotFound, NotFound},
	{endpoint.ErrNotFound, NotFound},
	{driver.ErrOutOfMemory, NoMemory},
	{endpoint.ErrLimit, Limit},
	{task.ErrCapacity, Limit},
	{endpoint.ErrCapability, Serialization},
	{message.ErrEncoding, Serialization},
	{tensor.ErrDType, Serialization},
	{endpoint.ErrPermission, Refused},
	{endpoint.ErrInvalid, Invalid},
	{tensor.ErrShape, Invalid},
	{tensor.ErrOverflow, Invalid},
	{errors.ErrUnsupported, NotServed}, // by an owner of an earlier version
}

// Kinds returns the kinds of err, the most important first.
func Kinds(err error) iter.Seq[Kind] {
	return func(yield func(Kind) bool) {
		for _, row := range kinds {
			if row.err != nil {
				if errors.Is(err, row.err) && !ownerLeft(err, row.err) && !yield(row.kind) {
					return
				}
				continue
			}
			var own *kindError
			if errors.As(err, &own) && !yield(own.kind) {
				return
			}
		}
	}
}

// ownerLeft reports whether a context was cancelled because the owner has left: no client cancelled the request then.
func ownerLeft(err, matched error) bool {
	return matched == context.Canceled && errors.Is(err, endpoint.ErrUnavailable)
}

// KindOf returns the kind of err, which is [Internal] for other errors.
func KindOf(err error) Kind {
	for kind := range Kinds(err) {
		return kind
	}
	return Internal
}

// Status returns err as gRPC clients receive it. It returns errors that have a status unchanged.
func Status(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(KindOf(err).GRPC, err.Error())
}
