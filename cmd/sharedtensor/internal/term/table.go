package term

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// Align is the horizontal alignment of a column.
type Align uint8

const (
	// Left aligns text.
	Left Align = iota
	// Right aligns numbers.
	Right
)

// Column describes a column of a table.
type Column struct {
	// Title is the heading.
	Title string
	// Align is the alignment of the cells.
	Align Align
	// Give is the order in which columns are cut if the table is wider than the terminal: the highest number first. A
	// column with 0 is not cut.
	Give int
	// Path makes cut cells keep their end, which is the file name of a path.
	Path bool
}

// Table is text in columns. Add makes cells safe for a terminal.
type Table struct {
	// Columns lists the columns from left to right.
	Columns []Column

	rows [][]string
}

// NewTable returns a table without rows.
func NewTable(columns ...Column) *Table { return &Table{Columns: columns} }

// Add appends a row. Missing trailing cells are empty.
func (t *Table) Add(cells ...string) {
	row := make([]string, len(t.Columns))
	for i, cell := range cells {
		row[i] = Printable(cell)
	}
	t.rows = append(t.rows, row)
}

// gap separates columns.
const gap = "  "

// Print writes the table. On a terminal it cuts the table to the terminal's width.
func (t *Table) Print(w io.Writer) error { return t.Write(w, TerminalWidth(w)) }

// Write writes the table, cut to width characters if width is not 0.
func (t *Table) Write(w io.Writer, width int) error {
	widths := t.widths(width)
	out := bufio.NewWriter(w)
	titles := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		titles[i] = c.Title
	}
	for _, row := range append([][]string{titles}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString(gap)
			}
			if t.Columns[i].Path {
				cell = clipStart(cell, widths[i])
			} else {
				cell = Clip(cell, widths[i])
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.Columns[i].Align == Right {
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

// leastWidth is the minimum width of a cut column.
const leastWidth = 6

// widths returns the width of each column.
func (t *Table) widths(limit int) []int {
	widths := make([]int, len(t.Columns))
	total := len(gap) * (len(t.Columns) - 1)
	for i, c := range t.Columns {
		widths[i] = utf8.RuneCountInString(c.Title)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	if limit <= 0 {
		return widths
	}
	for give := t.mostGiving(); give > 0 && total > limit; give-- {
		for i, c := range t.Columns {
			least := max(leastWidth, utf8.RuneCountInString(c.Title))
			if c.Give != give || widths[i] <= least {
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

func (t *Table) mostGiving() int {
	most := 0
	for _, c := range t.Columns {
		most = max(most, c.Give)
	}
	return most
}

// Clip shortens text to width characters, the last one an ellipsis.
func Clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return string(runes[:width-1]) + "…"
}

// clipStart shortens text to width characters, the first one an ellipsis.
func clipStart(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return "…" + string(runes[len(runes)-width+1:])
}
