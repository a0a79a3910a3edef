package endpoint

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// codes translates between errors and what crosses the socket. An error that answers to several rows is of the class of the first; the
// others go along. PROTOCOL.md has the words.
var codes = wire.NewCodeTable(
	wire.CodeRow{Code: wire.CodeTask, Type: "failed", Err: task.ErrFailed},
	wire.CodeRow{Code: wire.CodeTask, Type: "cancelled", Err: task.ErrCancelled},
	wire.CodeRow{Code: wire.CodeTask, Type: "not found", Err: task.ErrNotFound},
	wire.CodeRow{Code: wire.CodeTask, Type: "not complete", Err: task.ErrNotFinished},
	wire.CodeRow{Code: wire.CodeTask, Type: "capacity", Err: task.ErrCapacity},
	wire.CodeRow{Code: wire.CodeTask, Type: "shutting down", Err: task.ErrShutdown},
	wire.CodeRow{Code: wire.CodeTask, Type: "waits for itself", Err: task.ErrSelf},
	wire.CodeRow{Code: wire.CodeTask, Type: "discarded", Err: task.ErrDiscarded},
	wire.CodeRow{Code: wire.CodeInternal, Type: "panic", Err: ErrPanic},
	wire.CodeRow{Code: wire.CodeInternal, Type: "goexit", Err: ErrGoexit},
	wire.CodeRow{Code: wire.CodeStaleHandle, Type: "stale", Err: ErrStale, Class: true},
	wire.CodeRow{Code: wire.CodeProvider, Type: "not registered", Err: ErrNoEndpoint},
	wire.CodeRow{Code: wire.CodeProvider, Type: "registered", Err: ErrRegistered},
	wire.CodeRow{Code: wire.CodeConfiguration, Type: "configuration", Err: ErrConfiguration, Class: true},
	wire.CodeRow{Code: wire.CodeCapability, Type: "capability", Err: ErrCapability, Class: true},
	wire.CodeRow{Code: wire.CodeNotFound, Type: "version", Err: catalog.ErrNoVersion},
	wire.CodeRow{Code: wire.CodeNotFound, Type: "name", Err: catalog.ErrNotFound, Class: true},
	wire.CodeRow{Code: wire.CodeAlreadyExists, Type: "in use", Err: ErrInUse},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "bad name", Err: catalog.ErrName},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "bad handle", Err: driver.ErrHandle},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "bad manifest", Err: module.ErrManifest},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "bad tensor name", Err: module.ErrName},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "duplicate tensor name", Err: module.ErrDuplicateName},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "no state dict", Err: catalog.ErrNoStateDict},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "data type", Err: tensor.ErrDType},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "shape", Err: tensor.ErrShape},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "overflow", Err: tensor.ErrOverflow},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "outside the storage", Err: tensor.ErrBounds},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "outside the memory", Err: driver.ErrRange},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "index", Err: tensor.ErrIndex},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "no view", Err: tensor.ErrNotView},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "not contiguous", Err: tensor.ErrNotContiguous},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "not aligned", Err: tensor.ErrAlignment},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Type: "invalid", Err: driver.ErrInvalid, Class: true},
	wire.CodeRow{Code: wire.CodePermissionDenied, Type: "held by another", Err: catalog.ErrNotHolder},
	wire.CodeRow{Code: wire.CodePermissionDenied, Type: "read-only", Err: driver.ErrReadOnly},
	wire.CodeRow{Code: wire.CodeOutOfMemory, Type: "out of memory", Err: driver.ErrOutOfMemory, Class: true},
	wire.CodeRow{Code: wire.CodeResourceExhausted, Type: "limit", Err: ErrLimit, Class: true},
	wire.CodeRow{Code: wire.CodeResourceExhausted, Type: "model too large", Err: module.ErrTooLarge},
	wire.CodeRow{Code: wire.CodeUnavailable, Type: "unavailable", Err: ErrUnavailable, Class: true},
	wire.CodeRow{Code: wire.CodeUnavailable, Type: "loading", Err: ErrLoading},
	wire.CodeRow{Code: wire.CodeUnavailable, Type: "memory busy", Err: driver.ErrBusy},
	wire.CodeRow{Code: wire.CodeUnavailable, Type: "cache closed", Err: cache.ErrClosed},
	wire.CodeRow{Code: wire.CodeCanceled, Type: "abandoned", Err: cache.ErrAbandoned},
	wire.CodeRow{Code: wire.CodeClosed, Type: "catalog closed", Err: catalog.ErrClosed},
	wire.CodeRow{Code: wire.CodeClosed, Type: "server closed", Err: ErrServerClosed},
)

// encodeError is what a peer is told of err. With the end of a task goes its cause, so that who called an endpoint learns the same of a
// failure whether it ran as a task or not.
func encodeError(err error) *wire.Error { return encodeCause(err, 0) }

func encodeCause(err error, depth int) *wire.Error {
	var details wire.ErrorDetails
	var stale *StaleError
	if errors.As(err, &stale) {
		details.Object, details.Server = wire.CutText(stale.ObjectID, maxShown), wire.CutText(stale.ServerID, maxShown)
		details.Reason, details.Detail = string(stale.Reason), wire.CutText(stale.Detail, wire.MaxErrorMessage)
	}
	var ended *task.Error
	if depth < wire.MaxErrorCauses && errors.As(err, &ended) && ended.Err != task.ErrCancelled {
		details.Cause = encodeCause(ended.Err, depth+1)
	}
	if own, ok := applicationError(err); ok && details.Cause == nil {
		return own
	}
	return codes.EncodeWith(err, details)
}

// decodeError is the error that a peer sent. It answers for the sentinels of its code and type, for a [*StaleError] where it is about an
// object that is gone, and for the cause of a task's end.
func decodeError(e *wire.Error) error {
	var more []error
	if e.Code == wire.CodeApplication {
		return codes.Decode(e, decodeApplicationError(e))
	}
	details := e.Details()
	if details.Reason != "" {
		more = append(more, &StaleError{
			ObjectID: details.Object, ServerID: details.Server, Reason: StaleReason(details.Reason), Detail: details.Detail,
		})
	}
	if details.Cause != nil {
		more = append(more, decodeError(details.Cause))
	}
	return codes.Decode(e, more...)
}
