package intercept

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Names of W3C Trace Context fields, in metadata and in HTTP and gRPC headers.
const (
	// TraceParent carries [Trace.String].
	TraceParent = "traceparent"
	// TraceState carries [Trace.State].
	TraceState = "tracestate"
)

// Trace identifies the operation that a request is part of, across processes, as in W3C Trace Context.
type Trace struct {
	// TraceID identifies the operation and SpanID its part in this process, as 32 and 16 lower-case hexadecimal digits.
	TraceID, SpanID string
	// Flags is two hexadecimal digits; "01" requests that the trace be recorded.
	Flags string
	// State is data of tracing systems that is passed on unchanged; it may be empty.
	State string
}

// NewTrace returns a new trace that does not request recording.
func NewTrace() Trace { return Trace{TraceID: randomHex(16), SpanID: randomHex(8), Flags: "00"} }

// ParseTrace parses the two headers. It returns false if parent is not valid W3C Trace Context. Later versions are
// parsed like version 00, as the standard requires. An invalid state is ignored.
func ParseTrace(parent, state string) (Trace, bool) {
	if len(parent) > maxParent {
		return Trace{}, false
	}
	parts := strings.Split(parent, "-")
	if len(parts) < 4 || len(parts) > 4 && parts[0] == "00" {
		return Trace{}, false
	}
	for i, digits := range []int{2, 32, 16, 2} {
		if len(parts[i]) != digits || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return Trace{}, false
		}
	}
	t := Trace{TraceID: parts[1], SpanID: parts[2], Flags: parts[3]}
	if none := strings.Trim(t.TraceID, "0") == "" || strings.Trim(t.SpanID, "0") == ""; none || parts[0] == "ff" {
		return Trace{}, false
	}
	if validState(state) {
		t.State = state
	}
	return t, true
}

// Maximum lengths of headers. Later versions of traceparent may be longer than 55 bytes. The standard requires support
// for 512 bytes and 32 members of tracestate.
const (
	maxParent  = 256
	maxState   = 512
	maxMembers = 32
)

// validState reports whether text is a list of members such as vendor=value.
func validState(text string) bool {
	if len(text) > maxState {
		return false
	}
	members := strings.Split(text, ",")
	for _, m := range members {
		key, value, found := strings.Cut(strings.Trim(m, " \t"), "=")
		if !found || key == "" || value == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_-*/@") != "" ||
			strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' || r == '=' }) {
			return false
		}
	}
	return len(members) <= maxMembers
}

// String returns the value of [TraceParent] for outgoing requests.
func (t Trace) String() string { return "00-" + t.TraceID + "-" + t.SpanID + "-" + t.Flags }

// Child returns the same trace with a new span.
func (t Trace) Child() Trace {
	t.SpanID = randomHex(8)
	return t
}

type traceKey struct{}

// WithTrace returns a context that carries t.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the trace that ctx carries, or false if there is none.
func TraceFrom(ctx context.Context) (Trace, bool) {
	t, ok := ctx.Value(traceKey{}).(Trace)
	return t, ok
}

// StartSpan starts the span of a call. ctx carries its parent, if there is one ([TraceFrom]). It returns the context of
// the span, to which it may have added a Trace ([WithTrace]), and a function that receives the call's error when it
// ends, which may be nil.
type StartSpan func(ctx context.Context, call *endpoint.Invocation) (context.Context, func(error))

// Tracing associates calls, tasks and streams with traces. At the server, the function's context carries the caller's
// trace with a new span. At the client, the context's trace is sent with the call. If there is none, a new trace is
// started. A submitted task has the trace of its submission.
//
// start starts the span in the program's tracing system, such as OpenTelemetry. It may be nil: traces are then only
// propagated and available to logs.
func Tracing(start StartSpan) endpoint.Interceptor {
	return func(next endpoint.Invoke) endpoint.Invoke {
		return func(ctx context.Context, call *endpoint.Invocation) error {
			ctx, end := span(parent(ctx, call), call, start)
			if call.Client {
				t, _ := TraceFrom(ctx)
				call.Metadata[TraceParent] = t.String()
				if t.State != "" {
					call.Metadata[TraceState] = t.State
				}
			}
			if end == nil {
				return next(ctx, call)
			}
			err := errPanicked // unless next returns
			defer func() { end(err) }()
			err = next(ctx, call)
			return err
		}
	}
}

var errPanicked = errors.New("the call ended with a panic")

// parent returns ctx with the trace that was sent with the call, if any. The context of a task already has the trace of
// its submission.
func parent(ctx context.Context, call *endpoint.Invocation) context.Context {
	if call.Client || call.Kind == endpoint.KindTask {
		return ctx
	}
	if t, ok := ParseTrace(call.Metadata[TraceParent], call.Metadata[TraceState]); ok {
		return WithTrace(ctx, t)
	}
	return ctx
}

// span starts a span. The returned context carries a trace.
func span(ctx context.Context, call *endpoint.Invocation, start StartSpan) (context.Context, func(error)) {
	before, there := TraceFrom(ctx)
	var end func(error)
	if start != nil {
		ctx, end = start(ctx, call)
	}
	switch now, has := TraceFrom(ctx); {
	case has && now != before: // set by start
	case there:
		ctx = WithTrace(ctx, before.Child())
	default:
		ctx = WithTrace(ctx, NewTrace())
	}
	return ctx, end
}

// randomHex returns a random number in hexadecimal. It is not a secret, so it need not be unpredictable.
func randomHex(bytes int) string {
	b := make([]byte, 0, 16)
	for len(b) < bytes {
		b = binary.NativeEndian.AppendUint64(b, rand.Uint64()|1) // 0 is not a valid id
	}
	return hex.EncodeToString(b[:bytes])
}
