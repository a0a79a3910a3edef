package status

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Error is an application error that is sent to callers with its code, text and data. A function of an endpoint returns
// it, alone or wrapped. errors.As finds it in the error of a call, task or stream. errors.Is matches errors of the same
// code:
//
//	var ErrQuota = endpoint.NewError("quota", "the quota is used up")
//
//	if errors.Is(err, ErrQuota) { … }
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

// Is reports whether target is an [Error] with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.code == e.code
}

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
