package engine

import (
	"context"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
)

// deadlineContext is the context of a run with a time limit. It has its own timer: context.WithTimeout sets none if the
// parent has an earlier deadline, but the deadline of a run moves to a later time when callers join it.
type deadlineContext struct {
	context.Context // ends at the limit, or with the parent
	parent          context.Context
}

// withTimeout limits the duration of a run. The caller calls cancel.
func withTimeout(parent context.Context, limit time.Duration) (deadlineContext, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(noDeadline{parent}, limit)
	return deadlineContext{ctx, parent}, cancel
}

// timeoutError marks the error of a run that exceeded its limit as final, so that waiters with a later deadline do not
// retry.
func (t deadlineContext) timeoutError(err error) error {
	if err != nil && t.Context.Err() != nil && t.parent.Err() == nil {
		return cache.Final(err)
	}
	return err
}

// Deadline implements context.Context.
func (t deadlineContext) Deadline() (time.Time, bool) {
	limit, _ := t.Context.Deadline()
	if at, ok := t.parent.Deadline(); ok && at.Before(limit) {
		return at, true
	}
	return limit, true
}

// noDeadline is a context that hides its parent's deadline.
type noDeadline struct{ context.Context }

// Deadline implements context.Context.
func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
