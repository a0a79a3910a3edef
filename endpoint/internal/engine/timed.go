package engine

import (
	"context"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
)

// timed is the context of a run with a time limit. The limit holds by itself: context.WithTimeout would leave it to the
// parent to end where that has an earlier deadline, but the deadline of a run becomes later when others come to wait
// for it.
type timed struct {
	context.Context // ends at the limit, or with the parent
	parent          context.Context
}

// withTimeout bounds a run. The caller calls cancel.
func withTimeout(parent context.Context, limit time.Duration) (timed, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(undated{parent}, limit)
	return timed{ctx, parent}, cancel
}

// over is the error of a run: one after the limit is the limit's, whoever waits.
func (t timed) over(err error) error {
	if err != nil && t.Context.Err() != nil && t.parent.Err() == nil {
		return cache.Final(err)
	}
	return err
}

// Deadline implements context.Context.
func (t timed) Deadline() (time.Time, bool) {
	limit, _ := t.Context.Deadline()
	if at, ok := t.parent.Deadline(); ok && at.Before(limit) {
		return at, true
	}
	return limit, true
}

// undated is a context without its deadline.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }
