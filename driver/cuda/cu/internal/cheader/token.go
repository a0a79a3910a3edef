package cheader

import (
	"fmt"
	"strings"
)

// Kind is the kind of a token.
type Kind uint8

// The kinds of token. The preprocessor handles directives, so there is no kind for them.
const (
	EOF    Kind = iota // end of input
	Ident              // identifiers and keywords
	Number             // integer and floating constants, as written
	String             // string and character constants, with their quotes
	Punct              // one operator or bracket; "##", "<<", ">>", "&&", "||", "==", "!=", "<=", ">=" and "..." are one token each
)

// Token is one token of C.
type Token struct {
	// Kind is the token's kind.
	Kind Kind
	// Text is the token as written. It is empty at [EOF].
	Text string
	// Line counts from 1.
	Line int

	// final is set for a macro's name inside its own expansion, which is never expanded again.
	final bool
}

// is reports whether the token is the given operator, keyword or name.
func (t Token) is(text string) bool { return t.Text == text && (t.Kind == Punct || t.Kind == Ident) }

// String returns the token as it appears in error messages.
func (t Token) String() string {
	if t.Kind == EOF {
		return "end of file"
	}
	return fmt.Sprintf("%q", t.Text)
}

var longPuncts = []string{"...", "##", "<<", ">>", "&&", "||", "==", "!=", "<=", ">="}

// lexLine appends the tokens of one line, which has no comments, to dst.
func lexLine(dst []Token, line string, number int) ([]Token, error) {
	for i := 0; i < len(line); {
		c := line[i]
		j := i + 1
		kind := Punct
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			i++
			continue
		case isIdentStart(c):
			for j < len(line) && (isIdentStart(line[j]) || isDigit(line[j])) {
				j++
			}
			kind = Ident
		case isDigit(c):
			for j < len(line) && (isIdentStart(line[j]) || isDigit(line[j]) || line[j] == '.') {
				j++
			}
			kind = Number
		case c == '"' || c == '\'':
			for j < len(line) && line[j] != c {
				if line[j] == '\\' {
					j++
				}
				j++
			}
			if j >= len(line) {
				return nil, fmt.Errorf("line %d: constant without a closing %c", number, c)
			}
			j++
			kind = String
		default:
			for _, p := range longPuncts {
				if strings.HasPrefix(line[i:], p) {
					j = i + len(p)
					break
				}
			}
		}
		dst = append(dst, Token{Kind: kind, Text: line[i:j], Line: number})
		i = j
	}
	return dst, nil
}

func isIdentStart(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// stripComments replaces every comment by one space and keeps the line breaks in it. It joins lines that end in a
// backslash and adds empty lines instead. Line numbers therefore stay the same.
func stripComments(src string) (string, error) {
	var b strings.Builder
	b.Grow(len(src))
	pending := 0
	for i := 0; i < len(src); i++ {
		switch {
		case strings.HasPrefix(src[i:], "\\\n"):
			pending++
			i++
		case strings.HasPrefix(src[i:], "//"):
			n := strings.IndexByte(src[i:], '\n')
			if n < 0 {
				return b.String(), nil
			}
			i += n - 1
		case strings.HasPrefix(src[i:], "/*"):
			n := strings.Index(src[i+2:], "*/")
			if n < 0 {
				return "", fmt.Errorf("line %d: unterminated comment", 1+strings.Count(src[:i], "\n"))
			}
			b.WriteByte(' ')
			b.WriteString(strings.Repeat("\n", strings.Count(src[i:i+2+n], "\n")))
			i += n + 3
		case src[i] == '"':
			n := i + 1
			for n < len(src) && src[n] != '"' && src[n] != '\n' {
				if src[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n, len(src)-1)
			b.WriteString(src[i : n+1])
			i = n
		case src[i] == '\n':
			b.WriteString(strings.Repeat("\n", 1+pending))
			pending = 0
		default:
			b.WriteByte(src[i])
		}
	}
	return b.String(), nil
}
