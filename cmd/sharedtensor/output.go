package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// align says on which side of its column a cell stands.
type align uint8

const (
	left align = iota
	right
)

// column is a column of a table.
type column struct {
	title string
	align align
	// give is how readily the column is cut when the table does not fit the terminal: the one with the highest number is cut
	// first. 0 is never cut.
	give int
}

// table is text in columns. Cells are made fit for a terminal when they are added.
type table struct {
	columns []column
	rows    [][]string
}

func newTable(columns ...column) *table { return &table{columns: columns} }

// add appends a row; cells that are missing at its end are empty.
func (t *table) add(cells ...string) {
	row := make([]string, len(t.columns))
	for i, cell := range cells {
		row[i] = printable(cell)
	}
	t.rows = append(t.rows, row)
}

// gap stands between columns.
const gap = "  "

// print writes the table. On a terminal it is cut to the terminal's width; anywhere else nothing is cut.
func (t *table) print(w io.Writer) error { return t.write(w, terminalWidth(w)) }

// write writes the table, at most width wide if that is not 0.
func (t *table) write(w io.Writer, width int) error {
	widths := t.widths(width)
	out := bufio.NewWriter(w)
	titles := make([]string, len(t.columns))
	for i, c := range t.columns {
		titles[i] = c.title
	}
	for _, row := range append([][]string{titles}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString(gap)
			}
			cell = clip(cell, widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.columns[i].align == right {
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell)
		}
		out.WriteString(strings.TrimRight(line.String(), " "))
		out.WriteByte('\n')
	}
	return out.Flush()
}

// leastWidth is what is left of a column that is cut.
const leastWidth = 6

// widths decides how wide each column is.
func (t *table) widths(limit int) []int {
	widths := make([]int, len(t.columns))
	total := len(gap) * (len(t.columns) - 1)
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	if limit <= 0 {
		return widths
	}
	for give := t.mostGiving(); give > 0 && total > limit; give-- {
		for i, c := range t.columns {
			least := max(leastWidth, utf8.RuneCountInString(c.title))
			if c.give != give || widths[i] <= least {
				continue
			}
			cut := min(total-limit, widths[i]-least)
			if cut > 0 {
				widths[i] -= cut
				total -= cut
			}
		}
	}
	return widths
}

func (t *table) mostGiving() int {
	most := 0
	for _, c := range t.columns {
		most = max(most, c.give)
	}
	return most
}

// clip cuts text to width characters, the last of which then is an ellipsis.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return string(runes[:width-1]) + "…"
}

// jsonFlag adds --json to a command and returns where it is kept.
func jsonFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("json", false, "print JSON")
}

// printJSON writes v as indented JSON with a line break at the end. Slices should not be nil: an empty list is [].
func printJSON(w io.Writer, v any) error {
	return writeJSON(w, v, "  ")
}

// printJSONLine writes v as JSON on one line.
func printJSONLine(w io.Writer, v any) error {
	return writeJSON(w, v, "")
}

// writeJSON writes v in one piece. Characters that JSON need not escape but a terminal may obey, such as U+009B, are escaped too.
func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

// escapeJSON escapes what is not printable in the strings of a JSON text. Outside of them there is nothing but ASCII.
func escapeJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, unprintable) {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		switch {
		case !unprintable(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// unprintable reports whether a character of a JSON text must not reach a terminal.
func unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
