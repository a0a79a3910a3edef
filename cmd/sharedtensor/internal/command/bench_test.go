package command

import (
	"encoding/json"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

func TestBench(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, "TMPDIR="+p.dir)
	got := p.run("bench", "--quick", "--json", "kill")
	require.Equal(t, cli.ExitOK, got.code, got.stderr)
	require.Equal(t, "measuring kill\n", got.stderr)
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &rows))
	require.Len(t, rows, 1)
	for _, key := range []string{"name", "value", "unit", "floor", "ratio"} {
		require.Contains(t, rows[0], key)
	}
	require.Len(t, rows[0], 5)
	require.Equal(t, "kill", rows[0]["name"])
	require.Positive(t, rows[0]["value"])
	require.Regexp(t, `^FIGURE +VALUE +FLOOR +RATIO\nping-p50 +\S+ µs +\S+ µs +\S+\nping-p99 .*\n$`, p.must("bench", "--quick", "ping"))

	code, _, stderr := inProcess("bench", "pong")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, `unknown benchmark "pong" (have: ping, attach,`)
	require.Contains(t, p.fails(cli.ExitFailure, "bench", "worker", p.dir), "is not a directory of a benchmark")
	require.DirExists(t, p.dir)
}

// A killed benchmark leaves no directory behind.
func TestBenchKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, "TMPDIR="+p.dir)
	s := p.start(p.command("bench", "ping"))
	count := func() int {
		found, err := filepath.Glob(p.file("sharedtensor-bench-*/*.sock"))
		require.NoError(t, err)
		return len(found)
	}
	eventually(t, "it measures", func() bool { return count() == 2 })
	s.signal(syscall.SIGKILL)
	s.exit()
	eventually(t, "its directory is gone", func() bool {
		found, err := filepath.Glob(p.file("sharedtensor-bench-*"))
		require.NoError(t, err)
		return len(found) == 0
	})
}
