package term

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes text from a file or a peer safe for a terminal: it cannot move the cursor or break the line.
func Printable(text string) string {
	clean := true
	for _, r := range text {
		clean = clean && unicode.IsPrint(r) && r != utf8.RuneError
	}
	if clean {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}
