// Package term writes tables, JSON, progress and sizes for people and programs. Text of peers cannot control a terminal.
package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
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

// PrintJSON writes v as indented JSON and a newline. Slices should not be nil, so that an empty list prints as [].
func PrintJSON(w io.Writer, v any) error {
	return writeJSON(w, v, "  ")
}

// PrintJSONLine writes v as JSON on one line.
func PrintJSONLine(w io.Writer, v any) error {
	return writeJSON(w, v, "")
}

// writeJSON writes v in a single write. It also escapes characters that JSON allows but a terminal may interpret, such
// as U+009B.
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

// escapeJSON escapes unprintable characters in the strings of a JSON text. Everything outside strings is ASCII.
func escapeJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, Unprintable) {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		switch {
		case !Unprintable(r):
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

// Unprintable reports whether a character of a JSON text is unsafe to write to a terminal.
func Unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
