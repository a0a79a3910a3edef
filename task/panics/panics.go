// Package panics converts a panic or a Goexit of a function into an error for its callers.
package panics

import (
	"errors"
	"fmt"
	"runtime/debug"
)

var (
	// ErrPanic means that a function panicked; the error is an [*Error].
	ErrPanic = errors.New("panic")
	// ErrGoexit means that a function ended its goroutine instead of returning.
	ErrGoexit = errors.New("the function called runtime.Goexit")
)

// Error is a panic. It matches errors.Is for [ErrPanic] and, if the value of the panic is an error, for that error.
type Error struct {
	// Value is the argument of the panic.
	Value any
	// Stack is the stack of the goroutine at the panic, for logs.
	Stack []byte
}

// New returns the error for a recovered value. The deferred function that recovered it must call New, because of the
// stack.
func New(value any) *Error { return &Error{Value: value, Stack: debug.Stack()} }

// Error returns the value of the panic as text, without the stack.
func (e *Error) Error() string { return ErrPanic.Error() + ": " + e.Text() }

// Text returns the value of the panic as text. Package fmt handles a value that panics when printed.
func (e *Error) Text() string { return fmt.Sprint(e.Value) }

// Is reports whether target is [ErrPanic].
func (e *Error) Is(target error) bool { return target == ErrPanic }

// Unwrap returns the value of the panic if it is an error.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
