package bins

import (
	"fmt"
	"strings"
)

const (
	maxNameBytes = 200
	tokenLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	hexDigits    = "0123456789ABCDEF"
)

// CheckName reports why name cannot be the name of a bin: it has 1 to 200 bytes, and dots stand between its parts, none
// of which is empty. Every other byte is allowed.
func CheckName(name string) error {
	if name == "" || len(name) > maxNameBytes {
		return fmt.Errorf("%w: the name of a bin has 1 to %d bytes, this one has %d", ErrName, maxNameBytes, len(name))
	}
	for part := range strings.SplitSeq(name, ".") {
		if part == "" {
			return fmt.Errorf("%w: %q has an empty part between its dots", ErrName, name)
		}
	}
	return nil
}

// escape writes what NATS does not allow in a subject, and '%', as %XX. Dots stay: they separate the tokens of a
// subject.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c == '.' || strings.IndexByte(tokenLetters, c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

// unescape undoes escape. A subject that escape did not make yields false: whatever wrote it is not this package.
func unescape(text string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		if i+2 >= len(text) {
			return "", false
		}
		high, low := strings.IndexByte(hexDigits, text[i+1]), strings.IndexByte(hexDigits, text[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String(), CheckName(b.String()) == nil
}

// escapePattern is escape for patterns: '*' stands for one part of a name, '>' at the end for one or more.
func escapePattern(pattern string) (string, error) {
	if err := CheckName(pattern); err != nil {
		return "", err
	}
	parts := strings.Split(pattern, ".")
	for i, part := range parts {
		if part == "*" || part == ">" && i == len(parts)-1 {
			continue
		}
		parts[i] = escape(part)
	}
	return strings.Join(parts, "."), nil
}

func (s *Store) prefix() string { return "bin." + s.opts.Namespace + "." }

func (s *Store) subject(name string) string { return s.prefix() + escape(name) }

// binOf returns the name of the bin that a subject belongs to, and false for a subject that this package did not write.
func (s *Store) binOf(subject string) (string, bool) {
	text, ok := strings.CutPrefix(subject, s.prefix())
	if !ok {
		return "", false
	}
	return unescape(text)
}
