package gateway

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
)

// withTrace puts the trace of the headers of W3C Trace Context into ctx, with a span of the gateway's own, or a new one
// where there is none that can be read. It goes on to the owner with whatever is asked for in that context.
func withTrace(ctx context.Context, parent, state string) context.Context {
	t, ok := intercept.ParseTrace(parent, state)
	if !ok {
		return intercept.WithTrace(ctx, intercept.NewTrace())
	}
	return intercept.WithTrace(ctx, t.Child())
}

// traceID finds a request in logs.
func traceID(ctx context.Context) string {
	t, _ := intercept.TraceFrom(ctx)
	return t.TraceID
}
