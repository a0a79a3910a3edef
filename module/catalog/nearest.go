package catalog

import (
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"
)

const (
	// nearestNames limits the names that [Nearest] compares: it runs for failing requests of any client.
	nearestNames = 1024
	// nearestBytes is the maximum length of a suggested name.
	nearestBytes = 128
)

// Nearest returns the most similar of names: one that differs in a few letters or in case, or that begins with name. It
// returns "" if none is similar. It compares the first 1024 names of at most 128 bytes.
func Nearest(name string, names iter.Seq[string]) string {
	if len(name) > nearestBytes || !utf8.ValidString(name) {
		return ""
	}
	wanted := []rune(strings.ToLower(name))
	limit := min(1+len(wanted)/4, 3, len(wanted)-1)
	best, nearest := limit+2, ""
	looked := 0
	for other := range names {
		if looked++; looked > nearestNames {
			break
		}
		if other == name || len(other) > nearestBytes {
			continue
		}
		d := likeness(wanted, []rune(strings.ToLower(other)), limit)
		if d < best || d == best && d <= limit+1 && other < nearest {
			best, nearest = d, other
		}
	}
	return nearest
}

// likeness returns the number of different letters, if at most limit; limit+1 if other begins with name, and more if
// the names are not similar.
func likeness(name, other []rune, limit int) int {
	if d := editDistance(name, other, limit); d <= limit {
		return d
	}
	if len(name) > 1 && len(other) > len(name) && string(other[:len(name)]) == string(name) {
		return limit + 1
	}
	return limit + 2
}

// editDistance returns the number of insertions, deletions and changes from a to b; limit+1 if it exceeds limit.
func editDistance(a, b []rune, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range a {
		diagonal, least := row[0], i+1
		row[0] = i + 1
		for j, y := range b {
			cost := 1
			if x == y {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
			least = min(least, row[j+1])
		}
		if least > limit {
			return limit + 1
		}
	}
	return min(row[len(b)], limit+1)
}

// unknownLocked returns the error for a name that is not published, with the most similar published name.
func (c *Catalog) unknownLocked(op, name string) error {
	published := func(yield func(string) bool) {
		for n, e := range c.entries {
			if e.current != nil && !yield(n) {
				return
			}
		}
	}
	err := ErrNotFound
	if meant := Nearest(name, published); meant != "" {
		err = fmt.Errorf("%w; did you mean %q?", ErrNotFound, meant)
	}
	return &NameError{Op: op, Name: name, Err: err}
}
