package chaos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// The attacks measure how much memory hostile clients can make an owner use. Each has three processes: an owner, an
// honest client and an attacker, which encodes its own frames.

// Attacks increase the memory of owners with 1 GiB by a limited amount only, and honest clients are served meanwhile.
func TestOwnersWithstandAttacks(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	if testing.Short() {
		t.Skip("attacks for about a minute")
	}
	program := plainOwner(t)
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			row := measure(t, a, program)
			require.LessOrEqual(t, (row.Peak-row.Before)>>20, a.peak, "peak, in MiB: %v", row.Heard)
			require.LessOrEqual(t, (row.After-row.Before)>>20, a.kept, "kept, in MiB: %v", row.Heard)
			require.Positive(t, row.Honest.Served, "%v", row.Honest.Errors)
			require.Empty(t, row.Honest.Errors)
			if strings.HasPrefix(a.name, "results") {
				require.Equal(t, []string{"40 × response"}, row.Heard, "unused results are evicted if the system refuses memory")
			}
			if a.name == "objects" {
				text := strings.Join(row.Heard, "\n")
				require.Regexp(t, `(?m)^(9|1[0-6]) × response$`, text, "as many results as the owner may have for clients")
				require.Contains(t, text, "results of", "and then the limit")
			}
			t.Logf("%s: memory %d MiB to %d to %d, of it heap %d; slowest ping %v; %d of %d visits served; %s", a.what, row.Before>>20, row.Peak>>20,
				row.After>>20, row.Heap>>20, row.Honest.Slowest, row.Honest.Served, row.Honest.Visits, row.Heard)
		})
	}
}

// plainOwner builds this test binary without the race detector, because its address space exceeds the limits of the owners.
// It returns "" if the test binary has no race detector.
func plainOwner(t *testing.T) string {
	t.Helper()
	if !proctest.RaceDetector() {
		return ""
	}
	program := filepath.Join(t.TempDir(), "attack")
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
