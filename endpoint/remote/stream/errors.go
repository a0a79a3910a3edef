package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// Errors of this package, wrapped with details. Clients receive them as codes of gRPC statuses.
var (
	// ErrInvalid reports an invalid chunk, description or request.
	ErrInvalid = modelwire.ErrInvalid
	// ErrLimit reports a transfer over one of the Limits.
	ErrLimit = modelwire.ErrLimit
	// ErrChecksum reports a chunk whose bytes were damaged.
	ErrChecksum = modelwire.ErrChecksum
	// ErrIncomplete reports a transfer that ended before its tensors were complete.
	ErrIncomplete = modelwire.ErrIncomplete
	// ErrNotFound reports a set or tensor that does not exist.
	ErrNotFound = endpoint.ErrNotFound
	// ErrNotServed reports a call for which the server has no hook.
	ErrNotServed = admission.NewError(admission.NotServed, "not served here")
	// ErrStalled reports a peer that neither read nor sent for too long.
	ErrStalled = bulk.ErrStalled
	// errAgain reports a Put with an id that another call is passing to the sink.
	errAgain = admission.NewError(admission.Unavailable, "another call is completing this transfer: try again")
	// ErrUnknown reports a transfer with an unknown outcome: everything was sent, and the connection broke before the
	// answer.
	ErrUnknown = errors.New("the outcome is unknown")
)

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
	switch target {
	case ErrInvalid, ErrLimit, ErrChecksum, ErrIncomplete, ErrNotFound, ErrNotServed, context.Canceled, context.DeadlineExceeded,
		endpoint.ErrUnavailable, endpoint.ErrPermission:
		return admission.KindOf(target).GRPC == status.Code(e.err)
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
