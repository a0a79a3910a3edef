package cheader

import (
	"fmt"
	"slices"
)

// maxExpansion limits the tokens of one expanded line, so that macros that double each other cause an error.
const maxExpansion = 1 << 16

// expand appends the tokens to dst with all macros expanded. hidden are the macros that are being expanded; they are
// not expanded again inside their own expansion.
func (u *Unit) expand(dst, tokens []Token, hidden []string) ([]Token, error) {
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		m, ok := u.macros[t.Text]
		if t.Kind != Ident || !ok || t.final || slices.Contains(hidden, t.Text) {
			t.final = t.final || ok
			dst = append(dst, t)
			continue
		}
		body := m.Body
		if m.Function {
			if i+1 >= len(tokens) || !tokens[i+1].is("(") {
				dst = append(dst, t)
				continue
			}
			args, next, err := arguments(tokens, i+1)
			if err != nil {
				return nil, fmt.Errorf("macro %s: %w", m.Name, err)
			}
			body, err = u.substitute(m, args, hidden)
			if err != nil {
				return nil, err
			}
			i = next
		}
		placed := make([]Token, len(body))
		for k, b := range body {
			b.Line = t.Line
			placed[k] = b
		}
		before := len(dst)
		var err error
		dst, err = u.expand(dst, placed, append(slices.Clone(hidden), m.Name))
		if err != nil {
			return nil, err
		}
		if len(dst)-before > maxExpansion {
			return nil, fmt.Errorf("macro %s expands to more than %d tokens", m.Name, maxExpansion)
		}
	}
	return dst, nil
}

// arguments splits the bracketed list that opens at tokens[open] at its top-level commas, and returns the index of the
// closing bracket.
func arguments(tokens []Token, open int) (args [][]Token, end int, err error) {
	depth := 0
	var arg []Token
	for i := open; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case t.is("("):
			depth++
			if depth == 1 {
				continue
			}
		case t.is(")"):
			depth--
			if depth == 0 {
				return append(args, arg), i, nil
			}
		case t.is(",") && depth == 1:
			args = append(args, arg)
			arg = nil
			continue
		}
		arg = append(arg, t)
	}
	return nil, 0, fmt.Errorf("arguments without a closing bracket")
}

// substitute replaces a macro's parameters by the arguments and joins the tokens around ##.
func (u *Unit) substitute(m Macro, args [][]Token, hidden []string) ([]Token, error) {
	if len(args) != len(m.Params) && !(len(m.Params) == 0 && len(args) == 1 && len(args[0]) == 0) {
		return nil, fmt.Errorf("macro %s takes %d arguments, not %d", m.Name, len(m.Params), len(args))
	}
	var out []Token
	for i := 0; i < len(m.Body); i++ {
		t := m.Body[i]
		if t.is("##") && len(out) > 0 && i+1 < len(m.Body) {
			i++
			right := []Token{m.Body[i]}
			if p := slices.Index(m.Params, m.Body[i].Text); p >= 0 {
				right = args[p]
			}
			if len(right) == 0 {
				continue
			}
			last := &out[len(out)-1]
			last.Text += right[0].Text
			out = append(out, right[1:]...)
			continue
		}
		p := -1
		if t.Kind == Ident {
			p = slices.Index(m.Params, t.Text)
		}
		if p < 0 {
			out = append(out, t)
			continue
		}
		if i+1 < len(m.Body) && m.Body[i+1].is("##") {
			out = append(out, args[p]...)
			continue
		}
		var err error
		if out, err = u.expand(out, args[p], hidden); err != nil {
			return nil, err
		}
		if len(out) > maxExpansion {
			return nil, fmt.Errorf("macro %s expands to more than %d tokens", m.Name, maxExpansion)
		}
	}
	return out, nil
}
