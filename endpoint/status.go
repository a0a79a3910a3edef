package endpoint

import "github.com/sharedtensor/sharedtensor/endpoint/internal/status"

// Errors of owners and clients. They answer errors.Is on both sides of the socket: an owner's error travels as a code
// and a word, and what the client gets answers for the same sentinels and, with errors.As, is a [*message.Error].
// Errors that do not cross a socket, because the server is in this process or because the client itself refuses
// something, answer for the same sentinels.
var (
	// ErrInvalid is a request that makes no sense: a bad name, a manifest that does not fit its memory.
	ErrInvalid = status.ErrInvalid
	// ErrConfiguration is a registration, an option or an environment that makes no sense. It is [ErrInvalid] too, and
	// answers for [message.CodeConfiguration].
	ErrConfiguration = status.ErrConfiguration
	// ErrCapability is an argument, a result or a state dict that cannot be shared in place: memory that cannot be
	// exported or that the other side cannot map, a type that cannot cross. It says why, as errors.ErrUnsupported where
	// the device cannot do it, and answers for [message.CodeCapability].
	ErrCapability = status.ErrCapability
	// ErrNotFound is a name or version that nobody has published, or a lease that is not there.
	ErrNotFound = status.ErrNotFound
	// ErrLoading is a name that the owner is still loading. It is [ErrNotFound] too; [Client.Watch] tells when it is
	// published.
	ErrLoading = status.ErrLoading
	// ErrInUse is a socket that another owner holds.
	ErrInUse = status.ErrInUse
	// ErrPermission is a peer, a socket or a directory that this user must not trust.
	ErrPermission = status.ErrPermission
	// ErrUnavailable is an owner that is not there, or went away before it answered.
	ErrUnavailable = status.ErrUnavailable
	// ErrWorkerGone is a call whose worker went away before it answered ([Client.Offer]): whether the function ran is not
	// known, and nobody calls it again.
	ErrWorkerGone = status.ErrWorkerGone
	// ErrLimit is a request refused because a limit is reached: clients, requests in flight, bytes.
	ErrLimit = status.ErrLimit
	// ErrStale is a handle whose version is gone at the owner, or a managed object that is gone.
	ErrStale = status.ErrStale
	// ErrProtocol is a peer that does not keep to the protocol.
	ErrProtocol = status.ErrProtocol
	// ErrPanic is a function of an endpoint that panicked, or a type of its arguments or results that did while it
	// encoded or decoded itself.
	ErrPanic = status.ErrPanic
	// ErrGoexit is a function of an endpoint that ended its goroutine instead of returning.
	ErrGoexit = status.ErrGoexit
	// ErrClosed is a server, client or handle that was closed.
	ErrClosed = status.ErrClosed
	// ErrServerClosed is what Serve returns after Shutdown or Close.
	ErrServerClosed = status.ErrServerClosed
	// ErrRegistered is a name that is taken in a registry.
	ErrRegistered = status.ErrRegistered
	// ErrNoEndpoint is a call of a name that is not registered.
	ErrNoEndpoint = status.ErrNoEndpoint
)

// Error is an error of the program's own, which crosses to callers as it is: a function of an endpoint returns it,
// alone or wrapped, and errors.As finds it in what the caller gets, whether it called, submitted a task or reads a
// stream. errors.Is asks for an error of the same code:
//
//	var ErrQuota = endpoint.NewError("quota", "the quota is used up")
//
//	if errors.Is(err, ErrQuota) { … }
//
// Its methods: Code returns the program's word for the error, Error the sentence, Data(out any) decodes the value that
// goes along into a pointer, and WithData(value any) returns a copy of the error with a value.
type Error = status.Error

// NewError is an error with a code, a word that the program chooses and that programs on both sides know, and a
// sentence for people. A code of more than 64 bytes is cut, a text of more than 4096.
func NewError(code, text string) *Error { return status.NewError(code, text) }

// StaleError is a managed object that is gone. It answers errors.Is for [ErrStale] and [message.CodeStaleHandle]. Its
// fields: ObjectID is the object, empty for a result that was none; ServerID is the server that had it; Reason says
// what became of it; Detail is what the server said about it, for people, and mostly empty.
type StaleError = status.StaleError

// StaleReason says why a reference to a managed object is stale.
type StaleReason = status.StaleReason

const (
	// StaleObjectMissing is an object that its server does not have any more.
	StaleObjectMissing = status.StaleObjectMissing
	// StaleServerMismatch is an object of a server in whose place another one answers.
	StaleServerMismatch = status.StaleServerMismatch
)
