package gateway

import (
	"context"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
)

// withTrace adds the trace of W3C Trace Context headers to ctx, with a new span of the gateway. It starts a new trace
// if the headers are missing or invalid. Requests to the owner with this context carry the trace.
func withTrace(ctx context.Context, parent, state string) context.Context {
	t, ok := intercept.ParseTrace(parent, state)
	if !ok {
		return intercept.WithTrace(ctx, intercept.NewTrace())
	}
	return intercept.WithTrace(ctx, t.Child())
}

// traceID returns the trace ID, which identifies the request in logs.
func traceID(ctx context.Context) string {
	t, _ := intercept.TraceFrom(ctx)
	return t.TraceID
}

// correlationHeader is a request name that HTTP and gRPC clients may set in addition to the trace. It is logged with
// the request and returned in HTTP answers.
const correlationHeader = "X-Correlation-Id"

// maxCorrelation limits the length of a correlation id.
const maxCorrelation = 128

type correlationKey struct{}

// withCorrelation adds the client's correlation id to ctx if it is safe to log.
func withCorrelation(ctx context.Context, id string) context.Context {
	if id == "" || len(id) > maxCorrelation || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ctx
	}
	return context.WithValue(ctx, correlationKey{}, id)
}

// CorrelationFrom returns the client's correlation id of the request, or an empty string if there is none.
func CorrelationFrom(ctx context.Context) string {
	id, _ := ctx.Value(correlationKey{}).(string)
	return id
}
