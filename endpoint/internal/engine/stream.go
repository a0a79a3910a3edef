package engine

import "context"

type sendKey struct{}

// sendFunc sends one item of a stream and takes its tensors. It waits for the reader until ctx ends.
type sendFunc = func(ctx context.Context, item any) error

// WithSend returns a context in which a stream function passes its items to send.
func WithSend(ctx context.Context, send sendFunc) context.Context {
	return context.WithValue(ctx, sendKey{}, send)
}

// InvokeStream returns the Invoke function of a definition with a Stream. It passes items to the function set by
// WithSend, with the context of the run, so that the endpoint's time limit also applies to waiting for the reader.
func InvokeStream(d *Definition) func(context.Context, any) (any, error) {
	return func(ctx context.Context, in any) (any, error) {
		send := ctx.Value(sendKey{}).(sendFunc)
		return nil, d.Stream(ctx, in, func(item any) error { return send(ctx, item) })
	}
}
