package bins

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	maxNameBytes = 200
	tokenLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	hexDigits    = "0123456789ABCDEF"
)

// CheckName returns [ErrName] with a reason if name is not a valid bin name. A name has 1 to 200 bytes. Dots separate
// its parts, which must not be empty. Every other byte is allowed.
func CheckName(name string) error {
	if name == "" || len(name) > maxNameBytes {
		return fmt.Errorf("%w: it must have 1 to %d bytes, not %d", ErrName, maxNameBytes, len(name))
	}
	for part := range strings.SplitSeq(name, ".") {
		if part == "" {
			return fmt.Errorf("%w: %q has an empty part between its dots", ErrName, name)
		}
	}
	return nil
}

// escape writes bytes that NATS does not allow in a subject, and '%', as %XX. Dots stay: they separate the tokens of a
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

// unescape reverses escape. It returns false if text cannot be the result of escape, because another program wrote the
// subject.
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

// escapePattern is escape for patterns: '*' matches one part of a name, and a trailing '>' matches one or more.
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

// prefix returns the prefix of item subjects.
func (s *Store) prefix() string { return "bin." + s.opts.Namespace + "." }

// claimPrefix returns the prefix of claim subjects: the messages of Take and Delete.
func (s *Store) claimPrefix() string { return claimRoot + s.opts.Namespace + "." }

// claimRoot is the prefix of the claim subjects of all namespaces.
const claimRoot = "bin-take."

// parseMessage parses the headers of a claim or of an item, depending on its subject.
func parseMessage(subject string, header nats.Header, body []byte, sequence uint64, at time.Time) stored {
	if strings.HasPrefix(subject, claimRoot) {
		return parseClaim(header, sequence, at)
	}
	return parseStored(header, body, sequence, at)
}

// bothPrefix returns the prefix of a subject pattern for both items and claims.
func (s *Store) bothPrefix() string { return "*." + s.opts.Namespace + "." }

func (s *Store) subject(name string) string { return s.prefix() + escape(name) }

func (s *Store) claimSubject(name string) string { return s.claimPrefix() + escape(name) }

// binOf returns the bin name of a subject. It returns false if another program wrote the subject.
func (s *Store) binOf(subject string) (string, bool) {
	text, ok := strings.CutPrefix(subject, s.prefix())
	if !ok {
		if text, ok = strings.CutPrefix(subject, s.claimPrefix()); !ok {
			return "", false
		}
	}
	return unescape(text)
}
