package status

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Error is an error of the program's own, which crosses to callers as it is: a function of an endpoint returns it,
// alone or wrapped, and errors.As finds it in what the caller gets, whether it called, submitted a task or reads a
// stream. errors.Is asks for an error of the same code:
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
	// maxErrorCode is how many bytes the code of an [Error] has at most.
	maxErrorCode = 64
	// maxErrorValue is how many bytes its encoded data has at most: its message goes along.
	maxErrorValue = message.MaxErrorData - message.MaxErrorMessage - 64
)

// NewError is an error with a code, a word that the program chooses and that programs on both sides know, and a
// sentence for people. A code of more than 64 bytes is cut, a text of more than 4096.
func NewError(code, text string) *Error {
	return &Error{code: message.CutText(code, maxErrorCode), message: message.CutText(text, message.MaxErrorMessage)}
}

// WithData returns a copy of the error with a value that goes along, encoded as arguments are, at most 28,608 bytes; it
// cannot hold tensors. A value that cannot cross is told in the place of the error's message.
func (e *Error) WithData(value any) *Error {
	data, err := message.Marshal(value)
	if err == nil && len(data) > maxErrorValue {
		err = fmt.Errorf("it has %d bytes, the limit is %d", len(data), maxErrorValue)
	}
	if err != nil {
		return &Error{code: e.code, message: fmt.Sprintf("%s (its data cannot cross: %v)", e.message, err)}
	}
	return &Error{code: e.code, message: e.message, data: data}
}

// Code is the program's word for the error.
func (e *Error) Code() string { return e.code }

// Error is the sentence, or the code where there is none.
func (e *Error) Error() string {
	if e.message == "" {
		return e.code
	}
	return e.message
}

// Is makes the error answer for every [Error] of its code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.code == e.code
}

// Data decodes the value of WithData into out, a pointer, which stays as it is where the error has none.
func (e *Error) Data(out any) error {
	if len(e.data) == 0 {
		return nil
	}
	if err := message.Unmarshal(e.data, out); err != nil {
		return fmt.Errorf("data of error %q: %w", e.code, err)
	}
	return nil
}

// applicationError is the program's own error in a chain, as it crosses; false where there is none.
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

// decodeApplicationError is what applicationError was made of.
func decodeApplicationError(e *message.Error) *Error {
	var sent message.ApplicationError
	if len(e.Data) == 0 || message.Unmarshal(e.Data, &sent) != nil {
		sent.Message = e.Message
	}
	return &Error{code: e.Type, message: sent.Message, data: sent.Data}
}
