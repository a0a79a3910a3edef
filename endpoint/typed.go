package endpoint

import (
	"context"
	"iter"
)

// Call is [Calls].Call with a typed result.
func Call[Out any](ctx context.Context, c Calls, name string, in any) (Out, error) {
	var out Out
	err := c.Call(ctx, name, in, &out)
	return out, err
}

// Stub returns the endpoint as a Go function.
func Stub[In, Out any](c Calls, name string) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) { return Call[Out](ctx, c, name, in) }
}

// Stream is [Calls].Stream with typed results. Leaving the loop, or the end of ctx, stops the function at the owner.
// The tensors of each result are the caller's, who closes them. An error is the last pair. A task gives its worker away
// while it waits for a result.
func Stream[Out any](ctx context.Context, c Calls, name string, in any) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		for decode, err := range c.Stream(ctx, name, in) {
			var out Out
			if err == nil {
				err = decode(&out)
			}
			if err != nil {
				var none Out
				yield(none, err)
				return
			}
			if !yield(out, nil) {
				return
			}
		}
	}
}
