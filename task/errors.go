package task

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/task/panics"
)

// Errors of a manager, wrapped with the task that they are about.
var (
	// ErrNotFound is a task that does not exist, or is not kept any more.
	ErrNotFound = errors.New("task was not found")
	// ErrNotFinished is a result, or the end of a task, that was asked for too early.
	ErrNotFinished = errors.New("task is not complete")
	// ErrDiscarded is the result of a task that is known, but whose result is not kept any more: it was discarded, or
	// there were too many bytes of results.
	ErrDiscarded = errors.New("the result of the task was given up")
	// ErrFailed is the end of a task whose function failed; the error is an [*Error] with the cause.
	ErrFailed = errors.New("task failed")
	// ErrCancelled is the end of a task that was cancelled; the error is an [*Error] with the cause. It is also the
	// cause of a cancellation for which nobody gave one.
	ErrCancelled = errors.New("task was cancelled")
	// ErrCapacity is a manager that is full of tasks that have not finished.
	ErrCapacity = errors.New("task capacity exceeded")
	// ErrShutdown is a manager that accepts no new tasks, and the cause with which it cancels the old ones.
	ErrShutdown = errors.New("task manager is shutting down and is not accepting new tasks")
	// ErrPanic is a function that panicked; the cause of the failure is a [*PanicError].
	ErrPanic = panics.ErrPanic
	// ErrGoexit is a function that ended its goroutine instead of returning.
	ErrGoexit = panics.ErrGoexit
	// ErrSelf is a task that would wait for its own end, directly or through others.
	ErrSelf = errors.New("task waits for itself")
)

// Error is how a task ended that did not succeed. It answers errors.Is for [ErrFailed] or [ErrCancelled] and unwraps to
// the cause.
type Error struct {
	// ID is the task's id.
	ID string
	// Name is the task's name.
	Name string
	// State is Failed or Cancelled.
	State State
	// Err is what the function returned, or the cause of the cancellation. Of an error with a text of more than
	// [MaxErrorBytes] it is what is short: the beginning of the text, and the errors wrapped in it.
	Err error
}

// Error names the task and the cause.
func (e *Error) Error() string {
	if e.State == Cancelled {
		if e.Err == ErrCancelled {
			return fmt.Sprintf("task %q (%s) was cancelled", e.Name, e.ID)
		}
		return fmt.Sprintf("task %q (%s) was cancelled: %v", e.Name, e.ID, e.Err)
	}
	return fmt.Sprintf("task %q (%s) failed: %v", e.Name, e.ID, e.Err)
}

// Is makes the error answer for [ErrFailed] or [ErrCancelled].
func (e *Error) Is(target error) bool {
	return target == ErrFailed && e.State == Failed || target == ErrCancelled && e.State == Cancelled
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// PanicError is a panic in a task's function. It answers errors.Is for [ErrPanic] and, if the value of the panic is an
// error, for that too.
type PanicError = panics.Error
