package endpoint

import "github.com/sharedtensor/sharedtensor/endpoint/internal/status"

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

// Error is an application error that reaches callers unchanged. A function of an endpoint returns it, possibly wrapped;
// errors.As finds it in the caller's error, for calls, tasks and streams. errors.Is matches errors with the same code:
//
//	var ErrQuota = endpoint.NewError("quota", "the quota is used up")
//	if errors.Is(err, ErrQuota) { … }
//
// Its methods: Code returns the application's code, Error the text, Data(out any) decodes the attached value into a
// pointer, and WithData(value any) returns a copy with an attached value.
type Error = status.Error

// NewError returns an error with a code, which programs on both sides agree on, and a text for people. Codes are
// truncated to 64 bytes and texts to 4096.
func NewError(code, text string) *Error { return status.NewError(code, text) }

// StaleError reports a managed object that is gone. It matches [ErrStale] and [message.CodeStaleHandle]. Its fields:
// ObjectID is the object's id, empty if the result was not managed; ServerID is the id of its server; Reason is why it
// is gone; Detail is the server's explanation for people, usually empty.
type StaleError = status.StaleError

// StaleReason is the reason why a reference to a managed object is stale.
type StaleReason = status.StaleReason

const (
	// StaleObjectMissing means that the server no longer has the object.
	StaleObjectMissing = status.StaleObjectMissing
	// StaleServerMismatch means that another server has replaced the object's server.
	StaleServerMismatch = status.StaleServerMismatch
)
