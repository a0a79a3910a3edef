package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Errors of owners and clients. errors.Is matches them on both sides of the socket. An owner's error is sent as a code
// and a word; at the client it matches the same sentinels, and errors.As finds a [*message.Error]. Errors that do not
// cross a socket, because the server is in this process or the client refuses a request itself, match the same
// sentinels.
var (
	// ErrInvalid reports an invalid request, such as a bad name or a manifest that does not fit its memory.
	ErrInvalid = status.ErrInvalid
	// ErrConfiguration reports an invalid registration, option or environment. It also matches [ErrInvalid] and
	// [message.CodeConfiguration].
	ErrConfiguration = status.ErrConfiguration
	// ErrCapability reports an argument, result or state dict that cannot be shared in place: memory that cannot be
	// exported or that the peer cannot map, or a type that cannot be sent. It contains the reason, matches
	// errors.ErrUnsupported if the device lacks support, and matches [message.CodeCapability].
	ErrCapability = status.ErrCapability
	// ErrNotFound reports a name or version that is not published, or a lease that does not exist.
	ErrNotFound = status.ErrNotFound
	// ErrChanged reports a change of a name that requires another current version.
	ErrChanged = status.ErrChanged
	// ErrPart reports a part that does not fit the version ([PublishOptions.Part], [AcquireOptions.Part]).
	ErrPart = status.ErrPart
	// ErrIncomplete reports a version that was not published because parts of it were missing ([PublishOptions.Part]).
	ErrIncomplete = status.ErrIncomplete
	// ErrLoading reports a name that the owner is still loading. It also matches [ErrNotFound]. [Client.Watch] reports
	// the publication.
	ErrLoading = status.ErrLoading
	// ErrInUse reports a socket that another owner holds.
	ErrInUse = status.ErrInUse
	// ErrPermission reports a peer, socket or directory that this user must not trust.
	ErrPermission = status.ErrPermission
	// ErrUnavailable reports that no owner serves, or that it exited before it answered.
	ErrUnavailable = status.ErrUnavailable
	// ErrWorkerGone reports that a call's worker disconnected before it answered ([Client.Offer]). The function may
	// have run; the call is not repeated.
	ErrWorkerGone = status.ErrWorkerGone
	// ErrLimit reports a request over a limit, for example of clients, requests in flight or bytes.
	ErrLimit = status.ErrLimit
	// ErrStale reports a handle whose version the owner no longer has, or a managed object that is gone.
	ErrStale = status.ErrStale
	// ErrProtocol reports a peer that violates the protocol.
	ErrProtocol = status.ErrProtocol
	// ErrPanic reports a panic in an endpoint's function, or in the encoding or decoding of its types.
	ErrPanic = status.ErrPanic
	// ErrGoexit reports an endpoint's function that called runtime.Goexit.
	ErrGoexit = status.ErrGoexit
	// ErrClosed reports a server, client or handle that was closed.
	ErrClosed = status.ErrClosed
	// ErrServerClosed is returned by Serve after Shutdown or Close.
	ErrServerClosed = status.ErrServerClosed
	// ErrRegistered reports a name that is already registered.
	ErrRegistered = status.ErrRegistered
	// ErrNoEndpoint reports a call of a name that is not registered.
	ErrNoEndpoint = status.ErrNoEndpoint
)

// Error is an application error that reaches callers with its code, text and data. A function of an endpoint returns it,
// possibly wrapped; errors.As finds it in the caller's error, for calls, tasks and streams. errors.Is matches errors with
// the same code:
//
//	var ErrQuota = endpoint.NewError("quota", "the quota is used up")
//	if errors.Is(err, ErrQuota) { … }
type Error struct{ of *status.Error }

// NewError returns an error with a code, which programs on both sides agree on, and a text for people. Codes are
// truncated to 64 bytes and texts to 4096.
func NewError(code, text string) *Error { return &Error{status.NewError(code, text)} }

// WithData returns a copy of the error with a value, which is encoded like an argument. The value must not contain
// tensors, and its encoding must not exceed 28,608 bytes. If the value cannot be encoded, the copy has no value and its
// text includes the reason.
func (e *Error) WithData(value any) *Error { return &Error{e.of.WithData(value)} }

// Code returns the error's code.
func (e *Error) Code() string { return e.of.Code() }

// Error returns the text, or the code if the text is empty.
func (e *Error) Error() string { return e.of.Error() }

// Data decodes the value of WithData into out, a pointer. It leaves out unchanged if the error has no value.
func (e *Error) Data(out any) error { return e.of.Data(out) }

// Unwrap returns the content, which errors.Is compares.
func (e *Error) Unwrap() error { return e.of }

// ModelError is a failed operation on a model, such as Acquire or Publish of a client or server. It unwraps to the cause.
type ModelError struct {
	// Op is the operation, such as "acquire".
	Op string
	// Name is the name of the model. A name over 128 bytes is truncated.
	Name string
	// Version is the requested version; 0 means the newest, or none.
	Version uint64
	// Err is the cause, such as [ErrNotFound].
	Err error
}

// Error returns the operation, the name, the version and the cause.
func (e *ModelError) Error() string {
	return (&catalog.NameError{Op: e.Op, Name: e.Name, Version: e.Version, Err: e.Err}).Error()
}

// Unwrap returns the cause.
func (e *ModelError) Unwrap() error { return e.Err }

// modelError describes an error by its model. If err is an error of the catalog about the model, only its cause is used.
func modelError(op, name string, version uint64, err error) error {
	if of, ok := err.(*catalog.NameError); ok { //nolint:errorlint // only err itself
		err = of.Err
	}
	return &ModelError{Op: op, Name: message.CutText(name, status.MaxShown), Version: version, Err: err}
}

// StaleError reports a managed object that is gone. It matches [ErrStale] and [message.CodeStaleHandle].
type StaleError struct {
	// ObjectID is the object's id, empty if the result was not managed. ServerID is the id of its server.
	ObjectID, ServerID string
	// Reason is why the object is gone.
	Reason StaleReason
	// Detail is the server's explanation for people, such as the process that destroyed the object. It is often empty.
	Detail string
}

// StaleReason is the reason why a reference to a managed object is stale.
type StaleReason string

const (
	// StaleObjectMissing means that the server no longer has the object.
	StaleObjectMissing StaleReason = status.StaleObjectMissing
	// StaleServerMismatch means that another server has replaced the object's server.
	StaleServerMismatch StaleReason = status.StaleServerMismatch
)

// Error returns the object, the server and the reason.
func (e *StaleError) Error() string { return e.Unwrap().Error() }

// Unwrap returns an error that matches [ErrStale] and its code.
func (e *StaleError) Unwrap() error {
	return &status.StaleError{ObjectID: e.ObjectID, ServerID: e.ServerID, Reason: string(e.Reason), Detail: e.Detail}
}

func init() {
	status.AsDeclared = func(err error, target any) bool {
		switch e := err.(type) {
		case *status.Error:
			if t, ok := target.(**Error); ok {
				*t = &Error{e}
				return true
			}
		case *status.StaleError:
			if t, ok := target.(**StaleError); ok {
				*t = &StaleError{ObjectID: e.ObjectID, ServerID: e.ServerID, Reason: StaleReason(e.Reason), Detail: e.Detail}
				return true
			}
		}
		return false
	}
}
