package gateway

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
)

// TraceHeader carries a Trace over HTTP, gRPC (in lower case) and NATS, as W3C Trace Context says.
const TraceHeader = "Traceparent"

// Trace names the operation that a request belongs to, over all processes that take part in it, by the W3C's Trace
// Context.
type Trace struct {
	// TraceID names the operation, SpanID the part of it that is in this process, both in lower-case hexadecimal.
	TraceID, SpanID string
	// Flags are two hexadecimal digits; "01" asks for the trace to be recorded.
	Flags string
}

// String is the value of TraceHeader for requests that are sent on.
func (t Trace) String() string { return "00-" + t.TraceID + "-" + t.SpanID + "-" + t.Flags }

type traceKey struct{}

// TraceFrom returns the trace of the request of ctx; false outside a request.
func TraceFrom(ctx context.Context) (Trace, bool) {
	t, ok := ctx.Value(traceKey{}).(Trace)
	return t, ok
}

// withTrace puts the trace of a header into ctx, or a new one where there is none that can be read.
func withTrace(ctx context.Context, header string) context.Context {
	t, ok := parseTrace(header)
	if !ok {
		t = Trace{TraceID: randomHex(16), Flags: "00"}
	}
	t.SpanID = randomHex(8)
	return context.WithValue(ctx, traceKey{}, t)
}

// parseTrace reads a header. One of a later version is read as far as version 00 goes, as the standard asks.
func parseTrace(header string) (Trace, bool) {
	parts := strings.Split(header, "-")
	if len(parts) < 4 || len(parts) > 4 && parts[0] == "00" {
		return Trace{}, false
	}
	for i, digits := range []int{2, 32, 16, 2} {
		if len(parts[i]) != digits || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return Trace{}, false
		}
	}
	t := Trace{TraceID: parts[1], SpanID: parts[2], Flags: parts[3]}
	none := strings.Trim(t.TraceID, "0") == "" || strings.Trim(t.SpanID, "0") == ""
	return t, !none && parts[0] != "ff"
}

// randomHex is a number nobody else has by chance. It protects nothing, so it need not be hard to guess.
func randomHex(bytes int) string {
	b := make([]byte, 0, 16)
	for len(b) < bytes {
		b = binary.NativeEndian.AppendUint64(b, rand.Uint64())
	}
	return hex.EncodeToString(b[:bytes])
}
