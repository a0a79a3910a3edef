package status

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Codes maps errors to their wire form and back. If an error matches several rows, the first one determines its code
// and the words of all rows are sent. PROTOCOL.md lists the words.
var Codes = message.NewCodeTable(
	message.CodeRow{Code: message.CodeTask, Type: "failed", Err: task.ErrFailed},
	message.CodeRow{Code: message.CodeTask, Type: "cancelled", Err: task.ErrCancelled},
	message.CodeRow{Code: message.CodeTask, Type: "not found", Err: task.ErrNotFound},
	message.CodeRow{Code: message.CodeTask, Type: "not complete", Err: task.ErrNotFinished},
	message.CodeRow{Code: message.CodeTask, Type: "capacity", Err: task.ErrCapacity},
	message.CodeRow{Code: message.CodeTask, Type: "shutting down", Err: task.ErrShutdown},
	message.CodeRow{Code: message.CodeTask, Type: "waits for itself", Err: task.ErrSelf},
	message.CodeRow{Code: message.CodeTask, Type: "discarded", Err: task.ErrDiscarded},
	message.CodeRow{Code: message.CodeInternal, Type: "panic", Err: ErrPanic},
	message.CodeRow{Code: message.CodeInternal, Type: "goexit", Err: ErrGoexit},
	message.CodeRow{Code: message.CodeStaleHandle, Type: "stale", Err: ErrStale, Class: true},
	message.CodeRow{Code: message.CodeProvider, Type: "not registered", Err: ErrNoEndpoint},
	message.CodeRow{Code: message.CodeProvider, Type: "registered", Err: ErrRegistered},
	message.CodeRow{Code: message.CodeConfiguration, Type: "configuration", Err: ErrConfiguration, Class: true},
	message.CodeRow{Code: message.CodeCapability, Type: "capability", Err: ErrCapability, Class: true},
	message.CodeRow{Code: message.CodeNotFound, Type: "not kept", Err: ErrNotKept},
	message.CodeRow{Code: message.CodeNotFound, Type: "version", Err: catalog.ErrNoVersion},
	message.CodeRow{Code: message.CodeNotFound, Type: "name", Err: catalog.ErrNotFound, Class: true},
	message.CodeRow{Code: message.CodeAlreadyExists, Type: "in use", Err: ErrInUse},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "bad name", Err: catalog.ErrName},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "changed", Err: catalog.ErrChanged},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "part", Err: ErrPart},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "bad handle", Err: driver.ErrHandle},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "bad manifest", Err: module.ErrManifest},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "digest", Err: module.ErrDigest},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "incompatible", Err: module.ErrIncompatible},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "bad tensor name", Err: module.ErrName},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "duplicate tensor name", Err: module.ErrDuplicateName},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "no state dict", Err: catalog.ErrNoStateDict},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "data type", Err: tensor.ErrDType},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "shape", Err: tensor.ErrShape},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "overflow", Err: tensor.ErrOverflow},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "outside the storage", Err: tensor.ErrBounds},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "outside the memory", Err: driver.ErrRange},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "index", Err: tensor.ErrIndex},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "no view", Err: tensor.ErrNotView},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "not contiguous", Err: tensor.ErrNotContiguous},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "not aligned", Err: tensor.ErrAlignment},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "invalid", Err: driver.ErrInvalid, Class: true},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "no file layout", Err: module.ErrLayout},
	message.CodeRow{Code: message.CodeInvalidArgument, Type: "file format", Err: module.ErrFormat},
	message.CodeRow{Code: message.CodePermissionDenied, Type: "held by another", Err: catalog.ErrNotHolder},
	message.CodeRow{Code: message.CodePermissionDenied, Type: "read-only", Err: driver.ErrReadOnly},
	message.CodeRow{Code: message.CodeOutOfMemory, Type: "out of memory", Err: driver.ErrOutOfMemory, Class: true},
	message.CodeRow{Code: message.CodeResourceExhausted, Type: "limit", Err: ErrLimit, Class: true},
	message.CodeRow{Code: message.CodeResourceExhausted, Type: "model too large", Err: module.ErrTooLarge},
	// ErrLeaving is also ErrUnavailable, so its row is first.
	message.CodeRow{Code: message.CodeUnavailable, Type: leavingWord, Err: ErrLeaving},
	message.CodeRow{Code: message.CodeUnavailable, Type: "unavailable", Err: ErrUnavailable, Class: true},
	message.CodeRow{Code: message.CodeUnavailable, Type: "loading", Err: ErrLoading},
	message.CodeRow{Code: message.CodeUnavailable, Type: "worker gone", Err: ErrWorkerGone},
	message.CodeRow{Code: message.CodeUnavailable, Type: "memory busy", Err: driver.ErrBusy},
	message.CodeRow{Code: message.CodeUnavailable, Type: "cache closed", Err: cache.ErrClosed},
	message.CodeRow{Code: message.CodeDeadlineExceeded, Type: "incomplete", Err: ErrIncomplete},
	message.CodeRow{Code: message.CodeCanceled, Type: "abandoned", Err: cache.ErrAbandoned},
	message.CodeRow{Code: message.CodeClosed, Type: "catalog closed", Err: catalog.ErrClosed},
	message.CodeRow{Code: message.CodeClosed, Type: "server closed", Err: ErrServerClosed},
)

// EncodeError returns the wire form of err. It includes the cause of a task's end, so that callers receive the same
// error whether the endpoint ran as a task or as a call.
func EncodeError(err error) *message.Error { return encodeCause(err, 0) }

func encodeCause(err error, depth int) *message.Error {
	var details message.ErrorDetails
	var stale *StaleError
	if errors.As(err, &stale) {
		details.Object, details.Server = message.CutText(stale.ObjectID, MaxShown), message.CutText(stale.ServerID, MaxShown)
		details.Reason, details.Detail = stale.Reason, message.CutText(stale.Detail, message.MaxErrorMessage)
	}
	var ended *task.Error
	if depth < message.MaxErrorCauses && errors.As(err, &ended) && ended.Err != task.ErrCancelled {
		details.Cause = encodeCause(ended.Err, depth+1)
	}
	if own, ok := applicationError(err); ok && details.Cause == nil {
		return own
	}
	return Codes.EncodeWith(err, details)
}

// DecodeError returns the error that a peer sent. It matches the sentinels of its code and type, a [*StaleError] if it
// is about a missing object, and the cause of a task's end.
func DecodeError(e *message.Error) error {
	var more []error
	if e.Code == message.CodeApplication {
		return Codes.Decode(e, decodeApplicationError(e))
	}
	details := e.Details()
	if details.Reason != "" {
		more = append(more, &StaleError{
			ObjectID: details.Object, ServerID: details.Server, Reason: details.Reason, Detail: details.Detail,
		})
	}
	if details.Cause != nil {
		more = append(more, DecodeError(details.Cause))
	}
	return Codes.Decode(e, more...)
}

// EncodeSafely is EncodeError, but recovers if a method of err panics.
func EncodeSafely(err error) (out *message.Error) {
	defer func() {
		if recover() != nil {
			out = &message.Error{ // fmt recovers from panics of err
				Code: message.CodeInternal, Type: message.CutText(fmt.Sprintf("%T", err), message.MaxErrorType),
				Message: message.CutText(fmt.Sprint(err), message.MaxErrorMessage),
			}
		}
	}()
	return EncodeError(err)
}
