package endpoint

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of one request. Most functions of endpoints are over before anybody asks their context for more than Err, so
// what it takes to be told of an end (a channel, a timer, a place in the list of the session's context) is made when
// somebody first asks for it.
type callContext struct {
	parent   context.Context
	deadline time.Time // zero for none

	mu    sync.Mutex
	made  context.Context // nil until somebody asks
	ended error           // why the request was cancelled or is over, before made was
	// cancelMade and stop end made.
	cancelMade context.CancelCauseFunc
	stop       context.CancelFunc
}

// end ends the context; the first cause stays. A request that is over ends with nil, which stands for context.Canceled.
func (c *callContext) end(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	c.mu.Lock()
	if c.ended == nil {
		c.ended = cause
	}
	cancel, stop := c.cancelMade, c.stop
	c.mu.Unlock()
	if cancel != nil {
		cancel(cause)
		stop()
	}
}

// full is the context with all that it can be asked for.
func (c *callContext) full() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return c.made
	}
	inner, cancel := context.WithCancelCause(c.parent)
	c.cancelMade, c.stop, c.made = cancel, func() {}, inner
	if !c.deadline.IsZero() {
		c.made, c.stop = context.WithDeadline(inner, c.deadline)
	}
	if c.ended != nil {
		cancel(c.ended)
		c.stop()
	}
	return c.made
}

// Deadline implements context.Context.
func (c *callContext) Deadline() (time.Time, bool) {
	if !c.deadline.IsZero() {
		return c.deadline, true
	}
	return c.parent.Deadline()
}

// Done implements context.Context.
func (c *callContext) Done() <-chan struct{} { return c.full().Done() }

// Err implements context.Context.
func (c *callContext) Err() error {
	c.mu.Lock()
	made, ended := c.made, c.ended
	c.mu.Unlock()
	switch {
	case made != nil:
		return made.Err()
	case ended != nil:
		return context.Canceled
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return c.full().Err() // its deadline has passed, so it ends as it is made
	}
	return c.parent.Err()
}

// Value implements context.Context. Package context finds the cause of an end, and where to put the contexts below this one, by it.
func (c *callContext) Value(key any) any { return c.full().Value(key) }
