package limits

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// The maximum sizes in bytes of texts from peers.
const (
	LabelBytes  = 64   // label
	SourceBytes = 1024 // source of a publication
	ReasonBytes = 256  // reason for a cancellation
)

// ShortLabel returns a label that is safe to store and display.
func ShortLabel(label string) string { return ShortText(label, LabelBytes) }

// ShortText returns the printable characters of a peer's text, truncated to limit bytes. The result is a copy and does
// not keep the original text in memory.
func ShortText(text string, limit int) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return strings.Clone(b.String())
}
