//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/gpu_test/internal/machine"
)

// report is the result of all suites.
type report struct {
	started time.Time
	fake    bool
	machine machine.Machine
	built   string // commit and compiler
	results []result
}

func (r report) failed() bool {
	for _, s := range r.results {
		if s.err != nil {
			return true
		}
	}
	return len(r.results) == 0
}

// write writes report.md to the folder.
func (r report) write(out string) error {
	return os.WriteFile(filepath.Join(out, "report.md"), []byte(r.markdown()), 0o644)
}

func (r report) markdown() string {
	var b strings.Builder
	b.WriteString("# GPU suites\n\n")
	fmt.Fprintf(&b, "%s. %s.\n", r.started.UTC().Format("2006-01-02 15:04 MST"), strings.Join(strings.FieldsFunc(r.built, func(c rune) bool { return c == '\n' }), "; "))
	if r.fake {
		b.WriteString("\n**This run used the stand-in for the driver. It proves nothing about a GPU.**\n")
	}
	r.machineTable(&b)
	r.suiteTable(&b)
	r.failures(&b)
	r.skips(&b)
	r.facts(&b)
	return b.String()
}

func (r report) machineTable(b *strings.Builder) {
	b.WriteString("\n## Machine\n\n| property | state | effect |\n|---|---|---|\n")
	for _, row := range r.machine.Rows() {
		tableRow(b, row.Name, row.Value, row.Effect)
	}
}

func (r report) suiteTable(b *strings.Builder) {
	b.WriteString("\n## Suites\n\n| suite | subject | result | passed | skipped | failed | seconds |\n|---|---|---|---|---|---|---|\n")
	for _, s := range r.results {
		tableRow(b, "`"+s.suite.name+"`", s.suite.about, s.state(), fmt.Sprint(s.passed), fmt.Sprint(s.count(testSkipped)),
			fmt.Sprint(s.count(testFailed)), fmt.Sprintf("%.0f", s.seconds))
	}
}

// failures quotes the output of tests that failed, and the end of the log of a suite that ended early.
func (r report) failures(b *strings.Builder) {
	var text strings.Builder
	for _, s := range r.results {
		quoted := false
		for _, t := range s.tests {
			if t.outcome == testFailed && len(t.output) > 0 {
				quoted = true
				quote(&text, s.suite.name+": "+t.name, t.output)
			}
		}
		if s.err != nil && !quoted {
			quote(&text, s.suite.name+": "+s.err.Error(), s.tail)
		}
	}
	if text.Len() > 0 {
		b.WriteString("\n## Failures\n" + text.String())
	}
}

func quote(b *strings.Builder, title string, lines []string) {
	const most = 30
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	fmt.Fprintf(b, "\n### %s\n\n```\n%s\n```\n", title, strings.ReplaceAll(strings.Join(lines, "\n"), "```", "'''"))
}

// skips lists the tests that did not run, with their reasons.
func (r report) skips(b *strings.Builder) {
	b.WriteString("\n## Not tested here\n\n| suite | test | reason |\n|---|---|---|\n")
	for _, s := range r.results {
		for _, t := range s.tests {
			if t.outcome == testSkipped {
				tableRow(b, "`"+s.suite.name+"`", "`"+t.name+"`", firstLine(t.output))
			}
		}
	}
}

// firstLine returns the message of the first line without the place in the sources.
func firstLine(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	line := strings.TrimSpace(lines[0])
	if place, message, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
		return message
	}
	return line
}

func (r report) facts(b *strings.Builder) {
	b.WriteString("\n## Facts\n\n| fact | answer |\n|---|---|\n")
	for _, s := range r.results {
		for _, fact := range s.facts {
			name, answer, _ := strings.Cut(fact, ": ")
			tableRow(b, "`"+name+"`", answer)
		}
	}
}

// tableRow writes one row of a table.
func tableRow(b *strings.Builder, cells ...string) {
	for _, cell := range cells {
		b.WriteString("| " + strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", "/") + " ")
	}
	b.WriteString("|\n")
}
