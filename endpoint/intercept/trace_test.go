package intercept_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
)

func TestParseTrace(t *testing.T) {
	t.Parallel()
	const id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for header, fine := range map[string]bool{
		"00-" + id + "-" + span + "-01":                               true,
		"01-" + id + "-" + span + "-01-later":                         true,
		"00-" + id + "-" + span + "-01-later":                         false,
		"ff-" + id + "-" + span + "-01":                               false,
		"00-" + strings.ToUpper(id) + "-" + span + "-01":              false,
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01":          false,
		"00-" + id + "-" + strings.Repeat("0", 16) + "-01":            false,
		"00-" + id + "-" + span:                                       false,
		"00-" + id[1:] + "-" + span + "-01":                           false,
		"":                                                            false,
		"01-" + id + "-" + span + "-01-" + strings.Repeat("x", 1<<10): false,
	} {
		got, ok := intercept.ParseTrace(header, "")
		require.Equal(t, fine, ok, header)
		if fine {
			require.Equal(t, intercept.Trace{TraceID: id, SpanID: span, Flags: "01"}, got)
			require.Equal(t, "00-"+id+"-"+span+"-01", got.String())
		}
	}
	for state, fine := range map[string]bool{
		"a=1": true, "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE": true, "t@v=x": true,
		"a": false, "=1": false, "A=1": false, "a=1,": false, "a=1\n": false, "a=1=2": false,
		"a=" + strings.Repeat("x", 600): false, strings.Repeat("a=1,", 40) + "a=1": false,
	} {
		got, ok := intercept.ParseTrace("00-"+id+"-"+span+"-01", state)
		require.True(t, ok, "a bad state does not make the trace bad")
		require.Equal(t, fine, got.State == state, state)
	}
	child := intercept.NewTrace().Child()
	_, ok := intercept.ParseTrace(child.String(), "")
	require.True(t, ok)
}
