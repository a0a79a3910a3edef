package task

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/task/panics"
)

// Errors of a manager, wrapped with the task.
var (
	// ErrNotFound means that a task does not exist or is no longer kept.
	ErrNotFound = errors.New("task was not found")
	// ErrNotFinished means that the result or the end of a task was requested before it ended.
	ErrNotFinished = errors.New("task is not complete")
	// ErrDiscarded means that the task is known but its result was dropped, by Discard or by the limit on bytes.
	ErrDiscarded = errors.New("the result of the task was dropped")
	// ErrFailed means that the task's function failed; the error is an [*Error] with the cause.
	ErrFailed = errors.New("task failed")
	// ErrCancelled means that the task was cancelled; the error is an [*Error] with the cause. It is also the cause of
	// a cancellation without another cause.
	ErrCancelled = errors.New("task was cancelled")
	// ErrCapacity means that the manager is full of unfinished tasks.
	ErrCapacity = errors.New("task capacity exceeded")
	// ErrShutdown means that the manager accepts no new tasks. It is also the cause with which Shutdown cancels tasks.
	ErrShutdown = errors.New("task manager is shutting down and is not accepting new tasks")
	// ErrPanic means that the function panicked; the cause of the failure is a [*PanicError].
	ErrPanic = panics.ErrPanic
	// ErrGoexit means that the function ended its goroutine instead of returning.
	ErrGoexit = panics.ErrGoexit
	// ErrSelf means that the task would wait for its own end, directly or through others.
	ErrSelf = errors.New("task waits for itself")
)

// Error is the failure or cancellation of a task. It matches errors.Is for [ErrFailed], or for [ErrCancelled]
// and [context.Canceled], and unwraps to the cause.
type Error struct {
	// ID is the task's id.
	ID string
	// Name is the task's name.
	Name string
	// State is Failed or Cancelled.
	State State
	// Err is the error of the function, or the cause of the cancellation. If its text exceeds [MaxErrorBytes], Err is a
	// shortened error with the beginning of the text and the wrapped errors with short texts.
	Err error
}

// Error returns the task and the cause.
func (e *Error) Error() string {
	if e.State == Cancelled {
		if e.Err == ErrCancelled {
			return fmt.Sprintf("task %q (%s) was cancelled", e.Name, e.ID)
		}
		return fmt.Sprintf("task %q (%s) was cancelled: %v", e.Name, e.ID, e.Err)
	}
	return fmt.Sprintf("task %q (%s) failed: %v", e.Name, e.ID, e.Err)
}

// Is reports whether target is an error of the state: [ErrFailed], or [ErrCancelled] and [context.Canceled].
func (e *Error) Is(target error) bool {
	if e.State == Cancelled {
		return target == ErrCancelled || target == context.Canceled
	}
	return target == ErrFailed && e.State == Failed
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// PanicError is a panic in a task's function. It matches errors.Is for [ErrPanic] and, if the value of the panic is an
// error, for that error.
type PanicError = panics.Error
