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

// Stream is [Calls].Stream with typed results. Leaving the loop, or the end of ctx, cancels the function at the owner.
// The caller closes the tensors of each result. An error is the last pair. In a task, the worker is released while
// Stream waits for a result.
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
