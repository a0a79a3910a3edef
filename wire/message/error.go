package message

// Bounds of what an error says, so that an error can be sent whatever it is about. What is beyond them is left out by
// the sender.
const (
	// MaxErrorMessage is how many bytes the message of an error has.
	MaxErrorMessage = 4096
	// MaxErrorType is how many bytes its type has.
	MaxErrorType = 128
	// MaxErrorData is how many bytes its data has, its causes included.
	MaxErrorData = 32 << 10
	// MaxErrorCauses is how many causes follow one behind the other.
	MaxErrorCauses = 3
)

// Error is an error as it crosses to another process: the body of a frame of [KindError].
type Error struct {
	// Code is the class of the error.
	Code Code `cbor:"1,keyasint"`
	// Message is one sentence for people.
	Message string `cbor:"2,keyasint"`
	// Type tells errors of one code apart: a word of the table in PROTOCOL.md, or for what that does not have the
	// sender's own name of it, such as a Go type. It may be empty.
	Type string `cbor:"3,keyasint,omitempty"`
	// Data is one CBOR item with more about it, mostly an [ErrorDetails]; it may be nil.
	Data RawMessage `cbor:"4,keyasint,omitempty"`
}

// Error is the message, or the name of the code where there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Message
}

// Is makes the error answer for its [Code], and for an *Error that has the same code and no message.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return t.Code == e.Code && t.Message == ""
	}
	return false
}

// Details is what the Data of the error says, as far as it is an [ErrorDetails].
func (e *Error) Details() ErrorDetails {
	var d ErrorDetails
	if len(e.Data) == 0 || Unmarshal(e.Data, &d) != nil {
		return ErrorDetails{}
	}
	return d
}

// ApplicationError is the data of an error with [CodeApplication].
type ApplicationError struct {
	// Message is what the program says of it, without what the way here added.
	Message string `cbor:"1,keyasint,omitempty"`
	// Data is one CBOR item of the program's own; it may be nil.
	Data RawMessage `cbor:"2,keyasint,omitempty"`
}

// ErrorDetails are what there is to say of an error beside its class and its message.
type ErrorDetails struct {
	// Classes are what else the error is: one that says that memory cannot be shared may also say that the device is
	// not supported.
	Classes []ErrorClass `cbor:"1,keyasint,omitempty"`
	// Cause is why a task failed or was cancelled; nil for other errors.
	Cause *Error `cbor:"2,keyasint,omitempty"`
	// Object is the managed object that is gone, for [CodeStaleHandle].
	Object string `cbor:"3,keyasint,omitempty"`
	// Server is the server that had it.
	Server string `cbor:"4,keyasint,omitempty"`
	// Reason is "object_missing" or "server_mismatch".
	Reason string `cbor:"5,keyasint,omitempty"`
	// Detail is more about it, for people.
	Detail string `cbor:"6,keyasint,omitempty"`
}

// empty reports whether there is nothing to say.
func (d *ErrorDetails) empty() bool {
	return len(d.Classes) == 0 && d.Cause == nil && d.Object == "" && d.Server == "" && d.Reason == "" && d.Detail == ""
}

// ErrorClass is a class that an error belongs to.
type ErrorClass struct {
	// Code is the class.
	Code Code `cbor:"1,keyasint"`
	// Type is as in [Error].
	Type string `cbor:"2,keyasint,omitempty"`
}
