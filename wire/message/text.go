package message

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// ValidText returns text with each byte that is not part of UTF-8 replaced by its escape, such as `\xe9`. Names of files
// and texts of errors may contain such bytes, which no message can.
func ValidText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	valid, _ := validPrefix(text, math.MaxInt)
	return valid
}

// validPrefix returns the valid form of the start of text in at most max bytes, and the number of bytes of that start.
func validPrefix(text string, max int) (valid string, used int) {
	var b strings.Builder
	for used < len(text) {
		r, n := utf8.DecodeRuneInString(text[used:])
		piece := text[used : used+n]
		if r == utf8.RuneError && n == 1 {
			piece = fmt.Sprintf(`\x%02x`, piece[0])
		}
		if b.Len()+len(piece) > max {
			break
		}
		b.WriteString(piece)
		used += n
	}
	return b.String(), used
}

// CutText returns text cut to max bytes, which must be at least 8. If max is 64 or more, a cut text ends with the
// number of omitted bytes. The result is valid UTF-8, as [ValidText] returns it.
func CutText(text string, max int) string {
	if len(text) <= max {
		valid := ValidText(text)
		if len(valid) <= max {
			return valid
		}
	}
	n := max - len("…")
	if max >= 64 {
		n = max - len("… (9223372036854775807 bytes left out)")
	}
	cut, used := validPrefix(text, n)
	if max < 64 {
		return cut + "…"
	}
	return fmt.Sprintf("%s… (%d bytes left out)", cut, len(text)-used)
}

// checkTexts refuses an encoded message that its receivers would refuse because of a text. The sender thus gets the
// reason.
func checkTexts(item []byte) error {
	if text := InvalidText(item); text != nil {
		return fmt.Errorf("%w: the text %q is not UTF-8", ErrEncoding, text[:min(len(text), maxShownText)])
	}
	return nil
}

// maxShownText is the maximum size in bytes of a text in an error.
const maxShownText = 128

// MarshalShown encodes a message for display, such as a list, an event or an error. Bytes that are not UTF-8 become
// question marks, so one bad text cannot make the message unreadable. Raw parts may contain the tags of payloads. Errors
// are those of [Marshal].
func MarshalShown(v any) ([]byte, error) {
	b, err := payloadEncMode.Marshal(v)
	if err != nil {
		return nil, encodingError(err)
	}
	for text := InvalidText(b); text != nil; text = InvalidText(b) {
		repair(text)
	}
	return b, nil
}

// repair replaces the bytes of text that are not UTF-8. Its length remains.
func repair(text []byte) {
	for rest := text; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			rest[0] = '?'
		}
		rest = rest[n:]
	}
}
