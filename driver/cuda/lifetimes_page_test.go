package cuda_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// LIFETIMES.md has a row for every type with Close, and names every function of the driver that a release calls.
func TestLifetimesPageIsComplete(t *testing.T) {
	page, err := os.ReadFile("LIFETIMES.md")
	require.NoError(t, err)
	closers := regexp.MustCompile(`(?m)^func \(\w+ \*?([A-Z]\w*)(?:\[T\])?\) Close\(\)`)
	calls := regexp.MustCompile(`freed\("(cu\w+)"`)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range closers.FindAllStringSubmatch(string(text), -1) {
			require.Regexp(t, "(?m)^\\| [^|]*`"+m[1]+"`", string(page), "%s has Close", m[1])
			found++
		}
		for _, m := range calls.FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, string(page), "`"+m[1]+"`", file)
		}
	}
	require.Greater(t, found, 12)
}
