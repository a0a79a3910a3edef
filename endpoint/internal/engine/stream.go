package engine

import "context"

type sendKey struct{}

// WithSend is a context in which the function of a stream sends its items to send.
func WithSend(ctx context.Context, send func(any) error) context.Context {
	return context.WithValue(ctx, sendKey{}, send)
}

// InvokeStream is the Invoke of a definition with a Stream, whose items go where WithSend says.
func InvokeStream(d *Definition) func(context.Context, any) (any, error) {
	return func(ctx context.Context, in any) (any, error) {
		return nil, d.Stream(ctx, in, ctx.Value(sendKey{}).(func(any) error))
	}
}
