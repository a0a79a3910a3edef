package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// PrintJSON writes v as indented JSON with a line break at the end. Slices should not be nil: an empty list is [].
func PrintJSON(w io.Writer, v any) error {
	return writeJSON(w, v, "  ")
}

// PrintJSONLine writes v as JSON on one line.
func PrintJSONLine(w io.Writer, v any) error {
	return writeJSON(w, v, "")
}

// writeJSON writes v in one piece. Characters that JSON need not escape but a terminal may obey, such as U+009B, are
// escaped too.
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

// Unprintable reports whether a character of a JSON text must not reach a terminal.
func Unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
