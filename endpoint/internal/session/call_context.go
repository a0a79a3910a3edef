package session

import (
	"context"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
)

// callContext is the context of one request. Most functions of endpoints are over before anybody asks their context for
// more than Err, so what it takes to be told of an end (a channel, a timer, a place in the list of the session's
// context) is made when somebody first asks for it.
type callContext struct {
	parent   context.Context // the session's
	caller   context.Context // of a caller in this process, whose values and end count too; nil for others
	deadline time.Time       // zero for none

	slabs  *transfer.Slabs // for the result of the call; nil for most. Set before the function runs
	reader *reading        // which runs the request itself; nil for others. Set before the function runs

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
	parent, stop := c.parent, func() bool { return true }
	if c.caller != nil {
		parent = c.caller
	}
	inner, cancel := context.WithCancelCause(parent)
	if c.caller != nil {
		stop = context.AfterFunc(c.parent, func() { cancel(context.Cause(c.parent)) })
	}
	c.cancelMade, c.stop, c.made = cancel, func() { stop() }, inner
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
	if c.caller != nil {
		return c.caller.Deadline()
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
	case c.caller != nil && c.caller.Err() != nil:
		return c.caller.Err()
	}
	return c.parent.Err()
}

// Value implements context.Context. Package context finds the cause of an end, and where to put the contexts below this
// one, by it.
func (c *callContext) Value(key any) any {
	switch key {
	case inproc.RequestKey{}:
		return c
	case slabsKey{}:
		return c.slabs
	}
	return c.full().Value(key)
}

// CallsBack implements [inproc.Reentrant]: the reader that runs the function itself would not read the call that it
// makes.
func (c *callContext) CallsBack() {
	if c.reader != nil {
		c.reader.handOff()
	}
}
