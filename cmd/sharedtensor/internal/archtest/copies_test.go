package archtest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the import table into the files that repeat it")

const writtenBy = "(written by: go test ./cmd/sharedtensor/internal/archtest -update)"

// copies lists the files that repeat the import table, the lines that enclose the copy, and its expected content.
var copies = map[string]struct{ begin, end, content string }{
	".github/CONTRIBUTING.md": {
		begin:   "<!-- import table: begin " + writtenBy + " -->\n",
		end:     "<!-- import table: end -->\n",
		content: Markdown(),
	},
}

// The contributing guide matches the table.
func TestImportTableCopies(t *testing.T) {
	for name, c := range copies {
		path := filepath.Join(moduleRoot(t), filepath.FromSlash(name))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		head, rest, ok := strings.Cut(string(data), c.begin)
		require.True(t, ok, "%s has no line %q", path, c.begin)
		table, tail, ok := strings.Cut(rest, c.end)
		require.True(t, ok, "%s has no line %q", path, c.end)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(head+c.begin+c.content+c.end+tail), 0o644))
			continue
		}
		require.Equal(t, c.content, table, "%s differs from the import table: run this test with -update", name)
	}
}

func TestMarkdownNamesEveryPackage(t *testing.T) {
	page := Markdown()
	for _, r := range Table {
		require.Contains(t, page, "`"+strings.TrimSuffix(r.Package, "/...")+"`")
		for _, p := range r.Ours {
			if p != everything {
				require.Contains(t, page, p)
			}
		}
	}
	require.Contains(t, page, "| `driver/cuda` | driver, driver/internal/reaper, driver/cuda/cu | x/sys |\n")
}
