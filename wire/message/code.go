package message

import "strconv"

// Code names the class of an error across processes. It is itself an error, so that errors.Is(err, wire.CodeNotFound)
// asks for the class of an [Error] anywhere in a chain.
type Code uint16

// The codes. Numbers are stable; 1 to 8 are those of shared-tensor 0.2, 9 to 15 are free.
const (
	// CodeProtocol is a peer that broke the protocol.
	CodeProtocol Code = 1
	// CodeProvider is something that is not registered, or registered twice.
	CodeProvider Code = 2
	// CodeSerialization is a value that cannot be written or read.
	CodeSerialization Code = 3
	// CodeCapability is a payload that cannot be shared in place.
	CodeCapability Code = 4
	// CodeTask is a task that failed, was cancelled, or is not known.
	CodeTask Code = 5
	// CodeConfiguration is a setting or argument that makes no sense.
	CodeConfiguration Code = 6
	// CodeInternal is anything else.
	CodeInternal Code = 7
	// CodeStaleHandle is a handle whose object or server is gone.
	CodeStaleHandle Code = 8

	// CodeNotFound is a name, version, lease or request that does not exist.
	CodeNotFound Code = 16
	// CodeAlreadyExists is a name that is taken.
	CodeAlreadyExists Code = 17
	// CodeInvalidArgument is an argument that is refused.
	CodeInvalidArgument Code = 18
	// CodePermissionDenied is something the peer may not do.
	CodePermissionDenied Code = 19
	// CodeResourceExhausted is a limit that is reached.
	CodeResourceExhausted Code = 20
	// CodeUnsupported is an operation, kind of handle or feature that the peer does not have.
	CodeUnsupported Code = 21
	// CodeUnavailable is a server that is stopping or not ready.
	CodeUnavailable Code = 22
	// CodeCanceled is a request that was cancelled.
	CodeCanceled Code = 23
	// CodeDeadlineExceeded is a request whose time ran out.
	CodeDeadlineExceeded Code = 24
	// CodeOutOfMemory is memory that the system refused.
	CodeOutOfMemory Code = 25
	// CodeClosed is a thing that was closed before.
	CodeClosed Code = 26
	// CodeApplication is an error of the program's own: its type is the program's word for it, its data an
	// [ApplicationError].
	CodeApplication Code = 27
)

// Codes are all codes of this package, by number, with their names.
var codeNames = map[Code]string{
	CodeProtocol: "Protocol", CodeProvider: "Provider", CodeSerialization: "Serialization", CodeCapability: "Capability",
	CodeTask: "Task", CodeConfiguration: "Configuration", CodeInternal: "Internal", CodeStaleHandle: "StaleHandle",
	CodeNotFound: "NotFound", CodeAlreadyExists: "AlreadyExists", CodeInvalidArgument: "InvalidArgument",
	CodePermissionDenied: "PermissionDenied", CodeResourceExhausted: "ResourceExhausted", CodeUnsupported: "Unsupported",
	CodeUnavailable: "Unavailable", CodeCanceled: "Canceled", CodeDeadlineExceeded: "DeadlineExceeded",
	CodeOutOfMemory: "OutOfMemory", CodeClosed: "Closed",
	CodeApplication: "Application",
}

// String is the name of the code, such as "NotFound", or its number in words.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return "code " + strconv.Itoa(int(c))
}

// Error is the name of the code.
func (c Code) Error() string { return c.String() }
