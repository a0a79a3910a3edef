// Package nonfinite reads JSON that contains the numbers NaN, Infinity and -Infinity. They are not valid JSON, but the
// encoders of Python and RapidJSON write them.
package nonfinite

import "bytes"

// Words lists the non-finite numbers.
var Words = []string{"NaN", "Infinity", "-Infinity"}

// Replace replaces each of the numbers by the result of as. If there are none, it returns text itself and false.
func Replace(text []byte, as func(word string) string) ([]byte, bool) {
	if !bytes.Contains(text, []byte("NaN")) && !bytes.Contains(text, []byte("Infinity")) {
		return text, false
	}
	var out []byte
	copied := 0
	for at := 0; at < len(text); {
		if text[at] == '"' {
			at = afterString(text, at)
			continue
		}
		word := wordAt(text[at:])
		if word == "" {
			at++
			continue
		}
		out = append(append(out, text[copied:at]...), as(word)...)
		at += len(word)
		copied = at
	}
	if copied == 0 {
		return text, false
	}
	return append(out, text[copied:]...), true
}

// wordAt returns the number at the start of text, or "" if there is none.
func wordAt(text []byte) string {
	for _, word := range Words {
		if bytes.HasPrefix(text, []byte(word)) {
			return word
		}
	}
	return ""
}

// afterString returns the position after the string that begins at a position.
func afterString(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(text)
}
