package session

import (
	"context"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// Context is the context of one request in flight. Most functions use only its Err method. Therefore the channel, the timer
// and the registration with the parents are created on first use.
type Context struct {
	parent   context.Context // the session's
	caller   context.Context // of a caller in this process, whose values and cancellation apply too; nil for others
	deadline time.Time       // zero for none

	// Attached is a value of the operation that [Attached] returns; nil for most. Run may set it.
	Attached any

	reader      *readToken // set if the session's reader runs the request; nil for others. Set before the function runs
	reservation Reservation
	taken       bool // by TakeReservation

	mu    sync.Mutex
	made  context.Context // created on first use
	ended error           // why the request was cancelled or is over; nil while it runs
	// cancelMade ends made. release detaches it from its parents.
	cancelMade context.CancelCauseFunc
	release    func()
}

// end ends the context; the first cause wins. A completed request ends with nil, which becomes context.Canceled.
func (c *Context) end(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	c.mu.Lock()
	if c.ended == nil {
		c.ended = cause
	}
	cancel, release := c.cancelMade, c.release
	c.mu.Unlock()
	if cancel != nil {
		cancel(cause)
		release()
	}
}

// isOver reports whether the request was cancelled or is over.
func (c *Context) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// full returns a context of package context with the parents, the deadline and the cause of this one.
func (c *Context) full() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return c.made
	}
	made, cancel := context.WithCancelCause(c.base())
	detach, stopTimer := func() bool { return true }, context.CancelFunc(func() {})
	if c.caller != nil {
		detach = context.AfterFunc(c.parent, func() { cancel(context.Cause(c.parent)) })
	}
	if !c.deadline.IsZero() {
		made, stopTimer = context.WithDeadline(made, c.deadline)
	}
	c.made, c.cancelMade = made, cancel
	c.release = func() {
		detach()
		stopTimer()
	}
	if c.ended != nil {
		cancel(c.ended)
		c.release()
	}
	return c.made
}

// base returns the context whose values and deadline apply.
func (c *Context) base() context.Context {
	if c.caller != nil {
		return c.caller
	}
	return c.parent
}

// Deadline implements context.Context. It returns the earlier of the request's deadline and the caller's.
func (c *Context) Deadline() (time.Time, bool) {
	at, ok := c.base().Deadline()
	if !c.deadline.IsZero() && (!ok || c.deadline.Before(at)) {
		return c.deadline, true
	}
	return at, ok
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.full().Done() }

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	made, ended := c.made, c.ended
	c.mu.Unlock()
	switch {
	case made != nil:
		return made.Err()
	case ended != nil:
		return context.Canceled
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return c.full().Err() // its deadline has passed, so it is created in the ended state
	case c.caller != nil && c.caller.Err() != nil:
		return c.caller.Err()
	}
	return c.parent.Err()
}

// Value implements context.Context. Package context uses it to find the cause of a cancellation and to attach derived
// contexts.
func (c *Context) Value(key any) any {
	switch key {
	case transport.RequestKey{}:
		return c
	case attachedKey{}:
		return c.Attached
	}
	return c.full().Value(key)
}

// attachedKey is the context key of [Context.Attached].
type attachedKey struct{}

// Attached returns the value that the operation attached to the request of ctx, or nil.
func Attached(ctx context.Context) any { return ctx.Value(attachedKey{}) }

// TakeReservation returns the request's reservation. The caller releases it. Otherwise it is released when the run has
// returned. Only the run calls TakeReservation.
func (c *Context) TakeReservation() *Reservation {
	c.taken = true
	return &c.reservation
}

// CallsBack implements [transport.Reentrant]. It moves the read loop to another goroutine: the reader that runs the
// function would not read the call that the function makes.
func (c *Context) CallsBack() {
	if c.reader != nil {
		c.reader.handOff()
	}
}
