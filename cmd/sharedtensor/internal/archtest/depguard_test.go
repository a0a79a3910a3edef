package archtest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the import table into .golangci.yml")

// The lines between which .golangci.yml repeats the table.
const (
	tableBegin = "        # import table: begin (written by: go test ./cmd/sharedtensor/internal/archtest -update)\n"
	tableEnd   = "        # import table: end\n"
)

func TestLinterHasTheTable(t *testing.T) {
	path := filepath.Join(moduleRoot(t), ".golangci.yml")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(data), tableBegin)
	require.True(t, ok, "%s has no line %q", path, tableBegin)
	table, tail, ok := strings.Cut(rest, tableEnd)
	require.True(t, ok, "%s has no line %q", path, tableEnd)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(head+tableBegin+Depguard()+tableEnd+tail), 0o644))
		return
	}
	require.Equal(t, Depguard(), table, "run this test with -update")
}
