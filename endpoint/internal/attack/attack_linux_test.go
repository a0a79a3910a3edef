package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		os.Exit(childMain())
	}
	// Attacks mostly wait, each with separate processes. The command-line flag overrides this.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Attacks increase the memory of owners with 1 GiB by a limited amount only, and honest clients are served meanwhile.
// The test runs the program at a smaller scale.
func TestOwnersWithstandAttacks(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	if testing.Short() {
		t.Skip("attacks for about a minute")
	}
	p := plan{Scale: 0.25, Hold: time.Second, Memory: 1 << 30, Owner: plainOwner(t)}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			row, err := p.measure(context.Background(), a)
			require.NoError(t, err)
			drivertest.Needs(t, "cgroup", row.Skipped == "", row.Skipped)
			require.False(t, row.Ended, row.Failure)
			require.LessOrEqual(t, (row.Peak-row.Before.Memory)>>20, a.peak, "peak, in MiB: %v", row.Heard)
			require.LessOrEqual(t, (row.After.Memory-row.Before.Memory)>>20, a.kept, "kept, in MiB: %v", row.Heard)
			require.NotNil(t, row.Honest)
			require.Positive(t, row.Honest.Served, "%v", row.Honest.Errors)
			require.Empty(t, row.Honest.Errors)
			if strings.HasPrefix(a.name, "results") {
				require.Equal(t, []string{"40 × response"}, row.Heard, "what nobody holds gives way where the system refuses memory")
			}
			if a.name == "objects" {
				text := strings.Join(row.Heard, "\n")
				require.Regexp(t, `(?m)^(9|1[0-6]) × response$`, text, "as many results as the owner may have for clients")
				require.Contains(t, text, "results of", "and then the limit")
			}
			t.Logf("%+v to %d to %+v; %s", row.Before, row.Peak, row.After, row.Heard)
		})
	}
}

// plainOwner builds this program without the race detector, because its address space exceeds the limits of the owners.
// It returns "" if the test binary has no race detector.
func plainOwner(t *testing.T) string {
	t.Helper()
	if !raceDetector {
		return ""
	}
	program := filepath.Join(t.TempDir(), "attack")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

func TestInvalidFlags(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-scale", "0"}, {"-scale", "2"}, {"-hold", "-1s"}, {"-only", "nonsense"}, {"-nonsense"}} {
		require.Equal(t, 2, run(context.Background(), args, new(bytes.Buffer)), args)
	}
}

// The report is JSON for programs and a table for people. The table includes attacks that could not be measured.
func TestReport(t *testing.T) {
	rows := []measured{
		{Attack: "a", Before: state{Memory: 3 << 20}, Peak: 5 << 20, After: state{Memory: 4 << 20, Heap: 1 << 20}, Heard: []string{"2 × error 20"},
			Honest: &honest{P50: 0.5, Visits: 3, Served: 2, Errors: []string{"list: no"}}},
		{Attack: "b", Ended: true, Failure: "the owner ended"},
		{Attack: "c", Skipped: "no control group"},
	}
	var out bytes.Buffer
	printTable(&out, rows)
	for _, want := range []string{"3 MiB", "5 MiB", "4 MiB", "1 MiB", "0.50 ms", "2 of 3", "attacker: 2 × error 20", "list: no", "ended", "not here", "no control group"} {
		require.Contains(t, out.String(), want)
	}
	text, err := json.Marshal(rows)
	require.NoError(t, err)
	require.Contains(t, string(text), `"p50_ms":0.5`)
}
