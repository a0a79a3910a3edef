package status

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// AsDeclared stores err, an [*Error] or a [*StaleError], in target if that is a pointer to the type that package endpoint
// declares for programs. Package endpoint sets it.
var AsDeclared = func(err error, target any) bool { return false }

// Error is the content of an application error. Package endpoint declares and documents the type that programs use.
type Error struct {
	code    string
	message string
	data    message.RawMessage
}

const (
	// maxErrorCode is the maximum size in bytes of the code of an [Error].
	maxErrorCode = 64
	// maxErrorValue is the maximum size in bytes of its encoded data. The error's text needs the rest of the message.
	maxErrorValue = message.MaxErrorData - message.MaxErrorMessage - 64
)

// NewError returns an error with a code that programs on both sides compare, and a text for people. It truncates the
// code to 64 bytes and the text to 4096 bytes.
func NewError(code, text string) *Error {
	return &Error{code: message.CutText(code, maxErrorCode), message: message.CutText(text, message.MaxErrorMessage)}
}

// WithData returns a copy of the error with a value, which is encoded like an argument. The value must not contain
// tensors, and its encoding must not exceed 28,608 bytes. If the value cannot be encoded, the copy has no
// value and its text includes the reason.
func (e *Error) WithData(value any) *Error {
	data, err := message.Marshal(value)
	if err == nil && len(data) > maxErrorValue {
		err = fmt.Errorf("it has %d bytes, the limit is %d", len(data), maxErrorValue)
	}
	if err != nil {
		return &Error{code: e.code, message: fmt.Sprintf("%s (its data cannot be sent: %v)", e.message, err)}
	}
	return &Error{code: e.code, message: e.message, data: data}
}

// Code returns the error's code.
func (e *Error) Code() string { return e.code }

// Error returns the text, or the code if the text is empty.
func (e *Error) Error() string {
	if e.message == "" {
		return e.code
	}
	return e.message
}

// Is reports whether target is an [Error] with the same code, or contains one.
func (e *Error) Is(target error) bool {
	if declared, ok := target.(interface{ Unwrap() error }); ok {
		target = declared.Unwrap()
	}
	t, ok := target.(*Error)
	return ok && t.code == e.code
}

// As implements the method of errors.As for the type that package endpoint declares.
func (e *Error) As(target any) bool { return AsDeclared(e, target) }

// Data decodes the value of WithData into out, a pointer. It leaves out unchanged if the error has no value.
func (e *Error) Data(out any) error {
	if len(e.data) == 0 {
		return nil
	}
	if err := message.Unmarshal(e.data, out); err != nil {
		return fmt.Errorf("data of error %q: %w", e.code, err)
	}
	return nil
}

// applicationError returns the wire form of the first [Error] in the chain of err, and false if there is none.
func applicationError(err error) (*message.Error, bool) {
	var e *Error
	if !errors.As(err, &e) {
		return nil, false
	}
	out := &message.Error{Code: message.CodeApplication, Type: e.code, Message: message.CutText(err.Error(), message.MaxErrorMessage)}
	data, encErr := message.Marshal(message.ApplicationError{Message: message.CutText(e.message, message.MaxErrorMessage), Data: e.data})
	if encErr == nil {
		out.Data = data
	}
	return out, true
}

// decodeApplicationError returns the [Error] for its wire form.
func decodeApplicationError(e *message.Error) *Error {
	var sent message.ApplicationError
	if len(e.Data) == 0 || message.Unmarshal(e.Data, &sent) != nil {
		sent.Message = e.Message
	}
	return &Error{code: e.Type, message: sent.Message, data: sent.Data}
}

// The reasons of a [StaleError]. Package endpoint documents them.
const (
	StaleObjectMissing  = "object_missing"
	StaleServerMismatch = "server_mismatch"
)

// StaleError describes a managed object that no longer exists. It matches [ErrStale] and [message.CodeStaleHandle].
type StaleError struct {
	// ObjectID is the object's id, or empty if the result was not an object. ServerID is the id of its server.
	ObjectID string
	ServerID string
	// Reason is the reason.
	Reason string
	// Detail is the server's explanation for people, such as the process that destroyed the object. It is often empty.
	Detail string
}

// Error returns the object, the server and the reason.
func (e *StaleError) Error() string {
	object, server := "result", message.CutText(e.ServerID, MaxShown)
	if e.ObjectID != "" {
		object = "object " + Shown(e.ObjectID)
	}
	switch e.Reason {
	case StaleServerMismatch:
		return fmt.Sprintf("%s: %v: its server %s was replaced by another", object, ErrStale, server)
	}
	text := fmt.Sprintf("%s: %v: server %s does not have it any more", object, ErrStale, server)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Is reports whether target is [ErrStale] or its code.
func (e *StaleError) Is(target error) bool {
	return target == ErrStale || target == message.CodeStaleHandle
}

// As implements the method of errors.As for the type that package endpoint declares.
func (e *StaleError) As(target any) bool { return AsDeclared(e, target) }
