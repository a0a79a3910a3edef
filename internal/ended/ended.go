// Package ended describes contexts that have ended.
package ended

import "context"

// Cause returns why ctx has ended, or nil if it has not. The error has the text of context.Cause. It matches that cause and
// also ctx.Err, so that a caller can test for context.Canceled and context.DeadlineExceeded whatever the cause is.
func Cause(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if cause == err {
		return err
	}
	return &caused{cause, err}
}

// caused is the end of a context with a cause of its own.
type caused struct{ cause, err error }

func (c *caused) Error() string   { return c.cause.Error() }
func (c *caused) Unwrap() []error { return []error{c.cause, c.err} }
