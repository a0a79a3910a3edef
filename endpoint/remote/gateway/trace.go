package gateway

import (
	"context"
	"strings"

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

// correlationHeader is a name that a client gives a request, in HTTP and in gRPC, beside the trace that it belongs to.
// It is in the logs of the request, and HTTP's answer has it too.
const correlationHeader = "X-Correlation-Id"

// maxCorrelation bounds such a name.
const maxCorrelation = 128

type correlationKey struct{}

// withCorrelation puts the client's correlation id into ctx if it is fit for a log.
func withCorrelation(ctx context.Context, id string) context.Context {
	if id == "" || len(id) > maxCorrelation || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ctx
	}
	return context.WithValue(ctx, correlationKey{}, id)
}

// CorrelationFrom returns the name that the client gave the request of ctx; empty where it gave none.
func CorrelationFrom(ctx context.Context) string {
	id, _ := ctx.Value(correlationKey{}).(string)
	return id
}
