// Package panics is what becomes of a function that does not return: of its panic, and of the end of its goroutine.
// Whoever runs functions of others gives their callers these errors.
package panics

import (
	"errors"
	"fmt"
	"runtime/debug"
)

var (
	// ErrPanic is a function that panicked; the error is an [*Error].
	ErrPanic = errors.New("panic")
	// ErrGoexit is a function that ended its goroutine instead of returning.
	ErrGoexit = errors.New("the function called runtime.Goexit")
)

// Error is a panic. It answers errors.Is for [ErrPanic] and, if the value of the panic is an error, for that too.
type Error struct {
	// Value is what the function panicked with.
	Value any
	// Stack is the stack of the goroutine at the panic. It is for logs, not for the caller.
	Stack []byte
}

// New is the error for a recovered value. It is called by the deferred function that has recovered it, for the stack.
func New(value any) *Error { return &Error{Value: value, Stack: debug.Stack()} }

// Error is the value of the panic, without the stack.
func (e *Error) Error() string { return ErrPanic.Error() + ": " + e.Text() }

// Text is the value of the panic in words. Package fmt survives one that panics itself.
func (e *Error) Text() string { return fmt.Sprint(e.Value) }

// Is makes the error answer for [ErrPanic].
func (e *Error) Is(target error) bool { return target == ErrPanic }

// Unwrap returns the value of the panic if it is an error.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
