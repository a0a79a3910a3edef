// Package examples_test checks the pages of the repository: their code compiles, their links exist, and the error texts
// that they explain are those of the code.
package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages are the files that TestGoBlocksCompile, TestPythonBlocksParse and TestLinks check.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(found), 10)
	return append(found, "../README.md", "../examples/python/README.md", "../endpoint/remote/README.md", "../examples/onnx/README.md", "../examples/llama/README.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// blocks returns the code blocks of a page in one language.
func blocks(page, language string) []string {
	var found []string
	for _, match := range regexp.MustCompile("(?s)```"+language+"\n(.*?)\n```").FindAllStringSubmatch(page, -1) {
		found = append(found, match[1])
	}
	return found
}

// spaces replaces each run of white space by one space.
func spaces(text string) string { return strings.Join(strings.Fields(text), " ") }

// README and docs show Go code only from files that the build compiles.
func TestGoBlocksCompile(t *testing.T) {
	code := spaces(read(t, "snippets_test.go") + read(t, "first/main.go"))
	count := 0
	for _, page := range pages(t) {
		if !strings.HasPrefix(page, "../docs/") && page != "../README.md" {
			continue
		}
		for _, block := range blocks(read(t, page), "go") {
			for _, part := range strings.Split(block, "\n\n") {
				count++
				require.Contains(t, code, spaces(part), "%s shows code that is neither in snippets_test.go nor in first/main.go", page)
			}
		}
	}
	require.Greater(t, count, 5)
}

func TestPythonBlocksParse(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("python3 is not installed")
	}
	require.NoError(t, err)
	for _, page := range pages(t) {
		for _, block := range blocks(read(t, page), "python") {
			parse := exec.Command(python, "-c", "import ast, sys; ast.parse(sys.stdin.read())")
			parse.Stdin = strings.NewReader(block)
			out, err := parse.CombinedOutput()
			require.NoError(t, err, "%s:\n%s\n%s", page, block, out)
		}
	}
}

// Shell blocks parse, and each command of sharedtensor in them exists with its flags. The gateway's tests check its own.
func TestShellBlocksParse(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sharedtensor")
	out, err := exec.Command("go", "build", "-o", program, "../cmd/sharedtensor").CombinedOutput()
	require.NoError(t, err, "%s", out)
	command := regexp.MustCompile(`(?m)(?:^|& )sharedtensor ([^&#\n]*)`)
	count := 0
	for _, page := range pages(t) {
		for _, block := range blocks(read(t, page), "sh") {
			parse := exec.Command("bash", "-n")
			parse.Stdin = strings.NewReader(block)
			out, err := parse.CombinedOutput()
			require.NoError(t, err, "%s:\n%s\n%s", page, block, out)
			for _, match := range command.FindAllStringSubmatch(block, -1) {
				count++
				out, err := exec.Command(program, append(strings.Fields(match[1]), "--help")...).CombinedOutput()
				require.NoError(t, err, "%s: %s\n%s", page, match[0], out)
				require.Contains(t, string(out), "sharedtensor "+strings.Fields(match[1])[0], "%s: %s", page, match[0])
			}
		}
	}
	require.Positive(t, count)
}

// Every relative link of a page names an existing file.
func TestLinks(t *testing.T) {
	link, code := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`), regexp.MustCompile("(?s)```.*?```")
	for _, page := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), ""), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(page), match[1]))
			require.NoError(t, err, "%s links to %s", page, match[1])
		}
	}
}

func TestReadmeHasAtMost90Lines(t *testing.T) {
	require.LessOrEqual(t, strings.Count(read(t, "../README.md"), "\n"), 90)
}

// Each error text of docs/troubleshooting.md is in the code.
func TestTroubleshootingExplainsTextsOfTheCode(t *testing.T) {
	var code strings.Builder
	for _, root := range []string{"../cmd", "../driver", "../endpoint", "../internal", "../module", "../wire"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				code.WriteString(read(t, path))
			}
			return err
		}))
	}
	texts := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(read(t, "../docs/troubleshooting.md"), -1)
	require.Greater(t, len(texts), 20)
	for _, text := range texts {
		require.Contains(t, code.String(), text[1])
	}
}
