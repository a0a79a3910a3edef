package gateway

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
)

func TestTraceHeader(t *testing.T) {
	const id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for header, good := range map[string]bool{
		"00-" + id + "-" + span + "-01":                       true,
		"cc-" + id + "-" + span + "-01-later":                 true,
		"00-" + id + "-" + span + "-01-later":                 false,
		"ff-" + id + "-" + span + "-01":                       false,
		"00-00000000000000000000000000000000-" + span + "-01": false,
		"00-" + id + "-0000000000000000-01":                   false,
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-" + span + "-01": false,
		"":      false,
		"00---": false,
	} {
		ctx := withTrace(context.Background(), header, "")
		trace, ok := intercept.TraceFrom(ctx)
		require.True(t, ok, header)
		require.Equal(t, good, trace.TraceID == id, header)
		require.NotEqual(t, span, trace.SpanID, "this process is a span of its own")
		_, ok = intercept.ParseTrace(trace.String(), "")
		require.True(t, ok, "what is sent on can be read: %s", trace)
	}
}

func TestCorrelation(t *testing.T) {
	for id, good := range map[string]bool{
		"order-17/3": true, "": false, "two words": false, "line\nbreak": false, "\x1b[2J": false, "é": false, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false,
	} {
		require.Equal(t, good, CorrelationFrom(withCorrelation(context.Background(), id)) == id && id != "", "%q", id)
	}
}
