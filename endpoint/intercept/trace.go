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

// Names of W3C Trace Context, in metadata and in headers of HTTP and gRPC.
const (
	// TraceParent carries [Trace.String].
	TraceParent = "traceparent"
	// TraceState carries [Trace.State].
	TraceState = "tracestate"
)

// Trace names the operation that a request belongs to, over all processes that take part in it, by the W3C's Trace
// Context.
type Trace struct {
	// TraceID names the operation, SpanID the part of it that is in this process, both in lower-case hexadecimal, of 32
	// and 16 digits.
	TraceID, SpanID string
	// Flags are two hexadecimal digits; "01" asks for the trace to be recorded.
	Flags string
	// State is what tracing systems pass on between themselves; empty for nothing.
	State string
}

// NewTrace begins a trace that nobody asks to record.
func NewTrace() Trace { return Trace{TraceID: randomHex(16), SpanID: randomHex(8), Flags: "00"} }

// ParseTrace reads the two headers; false where the first has not the form of W3C Trace Context. One of a later version
// is read as far as version 00 goes, as the standard asks. A state that has not the form is left out.
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

// Bounds of the headers: later versions of the first may be longer than 55 bytes, and the standard asks for 512 bytes
// and 32 members of the second.
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

// String is the value of [TraceParent] for requests that are sent on.
func (t Trace) String() string { return "00-" + t.TraceID + "-" + t.SpanID + "-" + t.Flags }

// Child is the same trace with a new span.
func (t Trace) Child() Trace {
	t.SpanID = randomHex(8)
	return t
}

type traceKey struct{}

// WithTrace returns a context that carries t.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the trace that ctx carries; false for none.
func TraceFrom(ctx context.Context) (Trace, bool) {
	t, ok := ctx.Value(traceKey{}).(Trace)
	return t, ok
}

// StartSpan begins the span of a call: ctx carries its parent, if there is one ([TraceFrom]). It returns the context of
// the span, into which it may have put a Trace of its own ([WithTrace]), and what is to be told how the call ended; nil
// for nothing.
type StartSpan func(ctx context.Context, call *endpoint.Invocation) (context.Context, func(error))

// Tracing has calls, tasks and streams belong to traces. At the server's side a function's context carries the trace of
// its caller, with a span of its own; at the client's side the trace of the context goes with the call. Where there is
// none, one begins. The trace of a submitted task is that of its submission.
//
// start begins the span with the tracing system that the program has, OpenTelemetry's say; nil for none: then traces
// are passed on, and there is one for logs to tell.
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

// parent is ctx with the trace that came with a call, if one did. A task has that of its submission in its context.
func parent(ctx context.Context, call *endpoint.Invocation) context.Context {
	if call.Client || call.Kind == endpoint.KindTask {
		return ctx
	}
	if t, ok := ParseTrace(call.Metadata[TraceParent], call.Metadata[TraceState]); ok {
		return WithTrace(ctx, t)
	}
	return ctx
}

// span begins a span. The context that it returns carries a trace.
func span(ctx context.Context, call *endpoint.Invocation, start StartSpan) (context.Context, func(error)) {
	before, there := TraceFrom(ctx)
	var end func(error)
	if start != nil {
		ctx, end = start(ctx, call)
	}
	switch now, has := TraceFrom(ctx); {
	case has && now != before: // start has put it there
	case there:
		ctx = WithTrace(ctx, before.Child())
	default:
		ctx = WithTrace(ctx, NewTrace())
	}
	return ctx, end
}

// randomHex is a number nobody else has by chance. It protects nothing, so it need not be hard to guess.
func randomHex(bytes int) string {
	b := make([]byte, 0, 16)
	for len(b) < bytes {
		b = binary.NativeEndian.AppendUint64(b, rand.Uint64()|1) // not 0, which is no trace
	}
	return hex.EncodeToString(b[:bytes])
}
