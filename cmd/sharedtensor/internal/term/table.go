package term

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// Align says on which side of its column a cell stands.
type Align uint8

const (
	// Left is the side on which text stands.
	Left Align = iota
	// Right is the side on which numbers stand.
	Right
)

// Column is a column of a table.
type Column struct {
	// Title is the heading.
	Title string
	// Align is where cells stand.
	Align Align
	// Give is how readily the column is cut when the table does not fit the terminal: the one with the highest number
	// is cut first. 0 is never cut.
	Give int
}

// Table is text in columns. Cells are made fit for a terminal when they are added.
type Table struct {
	// Columns are those of the heading, from the left.
	Columns []Column

	rows [][]string
}

// NewTable returns a table without rows.
func NewTable(columns ...Column) *Table { return &Table{Columns: columns} }

// Add appends a row; cells that are missing at its end are empty.
func (t *Table) Add(cells ...string) {
	row := make([]string, len(t.Columns))
	for i, cell := range cells {
		row[i] = Printable(cell)
	}
	t.rows = append(t.rows, row)
}

// gap stands between columns.
const gap = "  "

// Print writes the table. On a terminal it is cut to the terminal's width; anywhere else nothing is cut.
func (t *Table) Print(w io.Writer) error { return t.Write(w, TerminalWidth(w)) }

// Write writes the table, at most width wide if that is not 0.
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
			cell = Clip(cell, widths[i])
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

// leastWidth is what is left of a column that is cut.
const leastWidth = 6

// widths decides how wide each column is.
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

// Clip cuts text to width characters, the last of which then is an ellipsis.
func Clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return string(runes[:width-1]) + "…"
}
