package message

import "strconv"

// Code is the class of an error across processes. It is itself an error, so errors.Is(err, message.CodeNotFound) tests
// the class of an [Error] in a chain.
type Code uint16

// The codes. Numbers are stable; 1 to 8 are those of shared-tensor 0.2, 9 to 15 are unassigned.
const (
	// CodeProtocol means that the peer violated the protocol.
	CodeProtocol Code = 1
	// CodeProvider means that an endpoint is not registered, or registered twice.
	CodeProvider Code = 2
	// CodeSerialization means that a value cannot be encoded or decoded.
	CodeSerialization Code = 3
	// CodeCapability means that a payload cannot be shared in place.
	CodeCapability Code = 4
	// CodeTask means that a task failed, was cancelled, or is unknown.
	CodeTask Code = 5
	// CodeConfiguration means that a setting or argument is invalid.
	CodeConfiguration Code = 6
	// CodeInternal is the class of all other errors.
	CodeInternal Code = 7
	// CodeStaleHandle means that the object or server of a handle is gone.
	CodeStaleHandle Code = 8

	// CodeNotFound means that a name, version, lease or request does not exist.
	CodeNotFound Code = 16
	// CodeAlreadyExists means that a name is in use.
	CodeAlreadyExists Code = 17
	// CodeInvalidArgument means that an argument is refused.
	CodeInvalidArgument Code = 18
	// CodePermissionDenied means that the peer lacks permission.
	CodePermissionDenied Code = 19
	// CodeResourceExhausted means that a limit is reached.
	CodeResourceExhausted Code = 20
	// CodeUnsupported means that the peer does not support the operation, kind of handle or feature.
	CodeUnsupported Code = 21
	// CodeUnavailable means that the server is stopping or not ready.
	CodeUnavailable Code = 22
	// CodeCanceled means that a request was cancelled.
	CodeCanceled Code = 23
	// CodeDeadlineExceeded means that a request timed out.
	CodeDeadlineExceeded Code = 24
	// CodeOutOfMemory means that the system refused memory.
	CodeOutOfMemory Code = 25
	// CodeClosed means that the object was closed before.
	CodeClosed Code = 26
	// CodeApplication is an error defined by the program: its type is the program's name for it, its data an
	// [ApplicationError].
	CodeApplication Code = 27
)

// codeNames maps each code to its name.
var codeNames = map[Code]string{
	CodeProtocol: "Protocol", CodeProvider: "Provider", CodeSerialization: "Serialization", CodeCapability: "Capability",
	CodeTask: "Task", CodeConfiguration: "Configuration", CodeInternal: "Internal", CodeStaleHandle: "StaleHandle",
	CodeNotFound: "NotFound", CodeAlreadyExists: "AlreadyExists", CodeInvalidArgument: "InvalidArgument",
	CodePermissionDenied: "PermissionDenied", CodeResourceExhausted: "ResourceExhausted", CodeUnsupported: "Unsupported",
	CodeUnavailable: "Unavailable", CodeCanceled: "Canceled", CodeDeadlineExceeded: "DeadlineExceeded",
	CodeOutOfMemory: "OutOfMemory", CodeClosed: "Closed",
	CodeApplication: "Application",
}

// String returns the name of the code, such as "NotFound", or its number as text.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return "code " + strconv.Itoa(int(c))
}

// Error returns the name of the code.
func (c Code) Error() string { return c.String() }
