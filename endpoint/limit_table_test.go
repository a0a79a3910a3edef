package endpoint

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The limits on clients are one table, equal to that of PROTOCOL.md, and each has a test.
func TestLimitsTable(t *testing.T) {
	text, err := os.ReadFile("../wire/PROTOCOL.md")
	if err != nil {
		text, err = os.ReadFile("../wire/message/PROTOCOL.md")
	}
	require.NoError(t, err)
	require.Contains(t, string(text), limitTable(), "copy this table to PROTOCOL.md")
	tests := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "../cache/*_test.go", "../wire/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range files {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(source, -1) {
				tests[string(m[1])] = true
			}
		}
	}
	for _, row := range limitRows {
		require.True(t, tests[row.test], "%s: there is no %s", row.name, row.test)
	}
}
