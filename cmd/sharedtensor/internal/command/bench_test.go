package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/bench"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

func TestBenchJSON(t *testing.T) {
	p := newPlace(t)
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(p.must("bench", "--quick", "--json", "--dir", p.dir, "kill")), &rows))
	require.Len(t, rows, 1)
	for _, key := range []string{"name", "value", "unit", "floor", "ratio", "target", "ok"} {
		require.Contains(t, rows[0], key)
	}
	require.Len(t, rows[0], 7)
	require.Equal(t, "kill", rows[0]["name"])
	require.Equal(t, "value <= 100", rows[0]["target"])
	require.Positive(t, rows[0]["value"])
}

func TestBenchRefusesUnknownNames(t *testing.T) {
	code, _, stderr := inProcess("bench", "pong")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, `unknown benchmark "pong" (have: ping, attach,`)
}

func TestBenchTable(t *testing.T) {
	floor, ratio := 20.4, 1.25
	var out bytes.Buffer
	require.NoError(t, printFigures(&out, []bench.Result{
		{Name: "ping-p50", Value: 25.5, Unit: "µs", Floor: &floor, Ratio: &ratio, Target: &bench.Target{Of: bench.Ratio, Limit: 1.3}, OK: true},
		{Name: "attach-1000", Value: 2400, Unit: "µs", Target: &bench.Target{Limit: 2000}},
		{Name: "attach-1", Value: 9.5, Unit: "µs", OK: true},
	}, false))
	require.Equal(t, strings.TrimPrefix(`
FIGURE         VALUE    FLOOR  RATIO     TARGET  OK
ping-p50     25.5 µs  20.4 µs   1.25     ≤ 1.30  yes
attach-1000  2400 µs        -      -  ≤ 2000 µs  no
attach-1     9.50 µs        -      -          -  -

For comparison: 174 µs was the median ping of the Python original, on two noisy cores.
`, "\n"), out.String())
	out.Reset()
	require.NoError(t, printFigures(&out, []bench.Result{}, true))
	require.Equal(t, "[]\n", out.String())
}

func TestBenchProgress(t *testing.T) {
	var out bytes.Buffer
	s := stages{w: &out, number: 1, total: 7}
	s.stage("ping")
	s.note("left out")
	s.end()
	require.Equal(t, "measuring 1 of 7: ping\nleft out\n", out.String())
	out.Reset()
	s.terminal = true
	s.stage("ping")
	s.end()
	require.Equal(t, term.ClearLine+"measuring 1 of 7: ping"+term.ClearLine, out.String())
}
