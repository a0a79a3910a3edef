package safetensors

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner scans JSON text (RFC 8259) once, from left to right, and never recurses deeper than maxDepth. It exists
// because encoding/json silently keeps the last of two equal keys. The text must be valid UTF-8. Strings without
// escapes are substrings of it, so they keep the text in memory.
type scanner struct {
	text     string
	pos      int
	depth    int
	maxDepth int
	// syntax is the error for malformed text.
	syntax error
}

// fail returns an error for malformed text at the current position.
func (s *scanner) fail(why string) error {
	return fmt.Errorf("%w: byte %d: %s", s.syntax, s.pos, why)
}

// next skips white space and returns the next byte without consuming it, 0 at the end.
func (s *scanner) next() byte {
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// mismatch returns the error for an unexpected type of the next value.
func (s *scanner) mismatch(want string) error {
	switch c := s.next(); {
	case (c == '{' || c == '[') && s.depth >= s.maxDepth:
		return fmt.Errorf("%w: byte %d: %s belongs here", ErrNesting, s.pos, want)
	case c == '{' || c == '[' || c == '"' || c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n':
		return fmt.Errorf("%w: byte %d: %s belongs here", ErrType, s.pos, want)
	case s.pos == len(s.text):
		return s.fail("ends where " + want + " belongs")
	}
	return s.fail(want + " belongs here")
}

// open consumes the bracket c that begins an object or an array.
func (s *scanner) open(c byte, want string) error {
	if s.next() != c || s.depth >= s.maxDepth {
		return s.mismatch(want)
	}
	s.depth++
	s.pos++
	return nil
}

// more consumes the separator after a member: a comma, or the bracket c that ends the object or array.
func (s *scanner) more(c byte) (bool, error) {
	switch s.next() {
	case ',':
		s.pos++
		return true, nil
	case c:
		s.depth--
		s.pos++
		return false, nil
	}
	return false, s.fail("a comma or '" + string(c) + "' belongs here")
}

// object iterates over an object. member is called with each key and consumes its value.
func (s *scanner) object(member func(key string) error) error {
	if err := s.open('{', "an object"); err != nil {
		return err
	}
	if s.next() == '}' {
		s.depth--
		s.pos++
		return nil
	}
	for {
		if s.next() != '"' {
			return s.fail("a key in quotes belongs here")
		}
		key, err := s.string()
		if err != nil {
			return err
		}
		if s.next() != ':' {
			return s.fail("a colon belongs here")
		}
		s.pos++
		if err := member(key); err != nil {
			return err
		}
		if again, err := s.more('}'); err != nil || !again {
			return err
		}
	}
}

// array iterates over an array. element consumes each value.
func (s *scanner) array(element func() error) error {
	if err := s.open('[', "an array"); err != nil {
		return err
	}
	if s.next() == ']' {
		s.depth--
		s.pos++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if again, err := s.more(']'); err != nil || !again {
			return err
		}
	}
}

// string consumes a string.
func (s *scanner) string() (string, error) {
	if s.next() != '"' {
		return "", s.mismatch("a string")
	}
	start := s.pos + 1
	for i := start; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			s.pos = i + 1
			return s.text[start:i], nil
		case c == '\\':
			return s.escaped(start, i)
		case c < ' ':
			s.pos = i
			return "", s.fail("control character in a string")
		}
	}
	s.pos = len(s.text)
	return "", s.fail("ends inside a string")
}

// escaped continues string from its first escape at byte i.
func (s *scanner) escaped(start, i int) (string, error) {
	var b strings.Builder
	b.WriteString(s.text[start:i])
	for s.pos = i; s.pos < len(s.text); {
		c := s.text[s.pos]
		switch {
		case c == '"':
			s.pos++
			return b.String(), nil
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case c < ' ':
			return "", s.fail("control character in a string")
		default:
			b.WriteByte(c)
			s.pos++
		}
	}
	return "", s.fail("ends inside a string")
}

// escape consumes one escape sequence, or two that form a surrogate pair.
func (s *scanner) escape() (rune, error) {
	if s.pos+1 >= len(s.text) {
		return 0, s.fail("ends inside an escape")
	}
	c := s.text[s.pos+1]
	if c != 'u' {
		i := strings.IndexByte(`"\/bfnrt`, c)
		if i < 0 {
			return 0, s.fail("unknown escape")
		}
		s.pos += 2
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	r, err := s.unicode()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !strings.HasPrefix(s.text[s.pos:], `\u`) {
		return 0, s.fail("half of a surrogate pair")
	}
	low, err := s.unicode()
	if err != nil {
		return 0, err
	}
	pair := utf16.DecodeRune(r, low)
	if pair == utf8.RuneError {
		return 0, s.fail("half of a surrogate pair")
	}
	return pair, nil
}

// unicode consumes \uXXXX.
func (s *scanner) unicode() (rune, error) {
	if s.pos+6 > len(s.text) {
		return 0, s.fail("ends inside an escape")
	}
	var r rune
	for _, c := range []byte(s.text[s.pos+2 : s.pos+6]) {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, s.fail("escape needs four hexadecimal digits")
		}
	}
	s.pos += 6
	return r, nil
}

// number consumes a number and returns its text.
func (s *scanner) number() (string, error) {
	if c := s.next(); c != '-' && (c < '0' || c > '9') {
		return "", s.mismatch("a number")
	}
	start := s.pos
	if s.text[s.pos] == '-' {
		s.pos++
	}
	first := s.pos
	if s.digits() == 0 || s.text[first] == '0' && s.pos > first+1 {
		return "", s.fail("not a number")
	}
	if s.at('.') {
		s.pos++
		if s.digits() == 0 {
			return "", s.fail("not a number")
		}
	}
	if s.at('e') || s.at('E') {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		if s.digits() == 0 {
			return "", s.fail("not a number")
		}
	}
	return s.text[start:s.pos], nil
}

// at reports whether the next byte is c.
func (s *scanner) at(c byte) bool { return s.pos < len(s.text) && s.text[s.pos] == c }

// digits consumes decimal digits and returns their number.
func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.text) && s.text[s.pos] >= '0' && s.text[s.pos] <= '9' {
		s.pos++
	}
	return s.pos - start
}

// natural consumes a nonnegative integer; a negative one is the error below.
func (s *scanner) natural(below error) (int64, error) {
	number, err := s.number()
	switch {
	case err != nil:
		return 0, err
	case number[0] == '-':
		return 0, fmt.Errorf("%w: %s is negative", below, quote(number))
	case strings.ContainsAny(number, ".eE"):
		return 0, fmt.Errorf("%w: %s is not written as an integer", ErrType, quote(number))
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", ErrOverflow, quote(number))
	}
	return n, nil
}

// skip consumes any value.
func (s *scanner) skip() error {
	switch c := s.next(); c {
	case '{':
		return s.object(func(string) error { return s.skip() })
	case '[':
		return s.array(s.skip)
	case '"':
		_, err := s.string()
		return err
	case 't', 'f', 'n':
		for _, word := range [...]string{"true", "false", "null"} {
			if strings.HasPrefix(s.text[s.pos:], word) {
				s.pos += len(word)
				return nil
			}
		}
		return s.fail("not a value")
	}
	_, err := s.number()
	return err
}

// end checks that only white space is left.
func (s *scanner) end() error {
	if s.next(); s.pos < len(s.text) {
		return fmt.Errorf("%w: byte %d", ErrTrailingJSON, s.pos)
	}
	return nil
}
