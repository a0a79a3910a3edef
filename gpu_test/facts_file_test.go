//go:build linux

package gpu_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	factsLog  = flag.String("facts", "", "with -run TestFactsFile: a `log` whose FACT lines are put into FACTS.md; \"none\" only rewrites the table")
	factsPath = flag.String("facts-file", "FACTS.md", "the file to check or write")
)

// notMeasured is the answer to a question that was not yet measured on a GPU.
const notMeasured = "not measured yet"

const factsBegin = "<!-- facts: begin (written by TestFactsFile, see the package comment) -->"
const factsEnd = "<!-- facts: end -->"

// factRow is the answer to one question in FACTS.md.
type factRow struct{ answer, where string }

// FACTS.md has one row for each question and no other rows. With -facts the test writes the file.
func TestFactsFile(t *testing.T) {
	text, err := os.ReadFile(*factsPath)
	if os.IsNotExist(err) && *factsLog == "" {
		t.Skip("FACTS.md is not beside this test binary")
	}
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(text), factsBegin)
	require.True(t, ok, "no table in %s", *factsPath)
	table, tail, ok := strings.Cut(rest, factsEnd)
	require.True(t, ok)
	rows := parseTable(table)
	if *factsLog != "" {
		if *factsLog != "none" {
			data, err := os.ReadFile(*factsLog)
			require.NoError(t, err)
			require.NoError(t, mergeFacts(rows, string(data)))
		}
		require.NoError(t, os.WriteFile(*factsPath, []byte(head+factsBegin+formatTable(rows)+factsEnd+tail), 0o644))
		return
	}
	require.True(t, table == formatTable(rows), "the table is not that of the questions: go test ./gpu_test -run '^TestFactsFile$' -facts none")
}

// parseTable parses the rows: name, question, answer, where it was measured, test.
func parseTable(table string) map[string]factRow {
	rows := map[string]factRow{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) == 5 && strings.HasPrefix(cells[0], "| `") {
			rows[strings.Trim(cells[0], "| `")] = factRow{cells[2], cells[3]}
		}
	}
	return rows
}

func formatTable(rows map[string]factRow) string {
	var b strings.Builder
	b.WriteString("\n| fact | question | answer | measured | test |\n|---|---|---|---|---|\n")
	for _, q := range questions {
		r, ok := rows[q.Name]
		if !ok {
			r = factRow{notMeasured, "-"}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` |\n", q.Name, q.Text, r.answer, r.where, q.Test)
	}
	return b.String()
}

// mergeFacts adds the answers of a log to rows. It refuses a log of the stand-in.
func mergeFacts(rows map[string]factRow, log string) error {
	said := parseLog(log)
	if said["library"] == standIn || said["library"] == "" {
		return fmt.Errorf("the log is not from a real driver: library %q", said["library"])
	}
	where := fmt.Sprintf("%s, %s, driver %s, CUDA %s", said["date"], said["gpu"], said["driver"], said["cuda"])
	if limits := said["machine"]; limits != "" && limits != noLimits {
		where += ", " + limits
	}
	for _, q := range questions {
		if a, ok := said[q.Name]; ok && !strings.HasPrefix(a, notMeasured) {
			rows[q.Name] = factRow{strings.ReplaceAll(a, "|", "/"), where}
		}
	}
	return nil
}

// parseLog returns the FACT lines by name. If a name is repeated, the last line counts.
func parseLog(log string) map[string]string {
	said := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "FACT "); ok {
			if name, value, ok := strings.Cut(rest, ": "); ok {
				said[name] = value
			}
		}
	}
	return said
}

func TestCollectingFacts(t *testing.T) {
	log := "=== RUN x\n\nFACT library: libcuda.so.1\nFACT date: 2026-01-02\nFACT gpu: G, 8 GiB\nFACT cuda: 13.0\nFACT driver: 580.1\n" +
		"FACT handle-kinds: first\nnoise FACT load: no\nFACT handle-kinds: a | b\nFACT torch-handle: not measured yet: no PyTorch\nFACT nonsense: 1\n"
	rows := map[string]factRow{"load": {"kept", "before"}}
	require.NoError(t, mergeFacts(rows, log))
	require.Equal(t, map[string]factRow{
		"load":         {"kept", "before"},
		"handle-kinds": {"a / b", "2026-01-02, G, 8 GiB, driver 580.1, CUDA 13.0"},
	}, rows)
	require.Equal(t, "kept", parseTable(formatTable(rows))["load"].answer)
	require.Equal(t, len(questions), len(parseTable(formatTable(rows))))
	require.NoError(t, mergeFacts(rows, log+"FACT machine: WSL\n"))
	require.Equal(t, "2026-01-02, G, 8 GiB, driver 580.1, CUDA 13.0, WSL", rows["handle-kinds"].where)
	require.Error(t, mergeFacts(rows, "FACT library: "+standIn+"\nFACT load: 1\n"))
	require.Error(t, mergeFacts(rows, "FACT load: 1\n"))
}

// Every test that a question names exists in the sources.
func TestQuestionsNameTests(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("the sources are not beside this test binary")
	}
	var all strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		all.Write(data)
	}
	seen := map[string]bool{}
	for _, q := range questions {
		require.False(t, seen[q.Name], q.Name)
		seen[q.Name] = true
		require.True(t, strings.Contains(all.String(), "func "+q.Test+"("), "there is no %s for %s", q.Test, q.Name)
	}
}
