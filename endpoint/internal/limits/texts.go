package limits

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// How many bytes are kept of texts that peers send.
const (
	LabelBytes  = 64   // of a label
	SourceBytes = 1024 // of the source of a publication
	ReasonBytes = 256  // of the reason for a cancel
)

// ShortLabel makes a label fit to be kept and shown.
func ShortLabel(label string) string { return ShortText(label, LabelBytes) }

// ShortText is what is kept of a text that a peer sent: its first printable characters, in at most limit bytes of their
// own, so that no part of a large text keeps all of it in memory.
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
