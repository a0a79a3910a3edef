package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
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
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s, err := c.through().openStream(ctx, name, in)
		var none Out
		if err != nil {
			yield(none, fmt.Errorf("stream %s: %w", status.Shown(name), err))
			return
		}
		defer func() { s.close(ctx) }()
		for {
			var out Out
			switch err := waiting(ctx, func() error { return s.next(ctx, &out) }); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(none, fmt.Errorf("stream %s: %w", status.Shown(name), err))
				return
			}
			if !yield(out, nil) {
				return
			}
		}
	}
}
