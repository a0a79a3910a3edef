package engine

import (
	"context"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
)

// deadlineContext is the context of a run with a time limit. The limit holds by itself: context.WithTimeout would leave
// it to the parent to end where that has an earlier deadline, but the deadline of a run becomes later when others come
// to wait for it.
type deadlineContext struct {
	context.Context // ends at the limit, or with the parent
	parent          context.Context
}

// withTimeout bounds a run. The caller calls cancel.
func withTimeout(parent context.Context, limit time.Duration) (deadlineContext, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(noDeadline{parent}, limit)
	return deadlineContext{ctx, parent}, cancel
}

// timeoutError marks the error of a run that ended after its limit as final: waiters with a later deadline do not try
// again.
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

// noDeadline is a context without its parent's deadline.
type noDeadline struct{ context.Context }

// Deadline implements context.Context.
func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
