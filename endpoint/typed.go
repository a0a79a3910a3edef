package endpoint

import (
	"context"
	"errors"
	"io"
	"iter"
)

// Call is [Caller].Call with a typed result.
func Call[Out any](ctx context.Context, c Caller, name string, in any) (Out, error) {
	var out Out
	err := c.Call(ctx, name, in, &out)
	return out, err
}

// Stub returns the endpoint as a Go function.
func Stub[In, Out any](c Caller, name string) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) { return Call[Out](ctx, c, name, in) }
}

// Stream calls an endpoint whose results come one by one. Leaving the loop, or the end of ctx, stops the function at
// the owner. The tensors of each result are the caller's, who closes them. An error is the last pair. A task gives its
// worker away while it waits for a result.
func Stream[Out any](ctx context.Context, c Caller, name string, in any) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		left := false
		err := c.through().streaming(ctx, name, in, func(ctx context.Context, s *stream) error {
			for !left {
				var out Out
				switch err := waiting(ctx, func() error { return s.next(ctx, &out) }); {
				case errors.Is(err, io.EOF):
					return nil
				case err != nil:
					return err
				}
				left = !yield(out, nil)
			}
			return nil
		})
		if err != nil && !left {
			var none Out
			yield(none, err)
		}
	}
}
