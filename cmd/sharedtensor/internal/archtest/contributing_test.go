package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContributingNamesEveryRow keeps the table that people read from falling behind the one that is enforced.
func TestContributingNamesEveryRow(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(moduleRoot(t), ".github", "CONTRIBUTING.md"))
	require.NoError(t, err)
	for _, r := range Table {
		name := strings.TrimSuffix(r.Package, "/...")
		require.Contains(t, string(data), "`"+name+"`", "the import table in CONTRIBUTING.md has no such package")
	}
}
