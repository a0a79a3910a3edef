package cheader

import (
	"fmt"
	"strings"
)

// Macro is a macro definition.
type Macro struct {
	// Name is the macro's name.
	Name string
	// Function reports whether the macro takes arguments, and Params names them.
	Function bool
	// Params are the names of the arguments.
	Params []string
	// Body is the macro's replacement, not expanded.
	Body []Token
}

// Unit is a preprocessed file.
type Unit struct {
	// Tokens are the remaining tokens after conditionals and expansion, without an [EOF].
	Tokens []Token
	// Defined holds every macro that was defined, in order, including those undefined later. A macro that is defined
	// twice occurs twice.
	Defined []Macro

	macros map[string]Macro
}

// Preprocess evaluates the conditionals of src and expands its macros. predefined are macros without parameters, like
// the -D options of a compiler. #include and #pragma are ignored. An #error in an active branch is an error.
func Preprocess(src string, predefined map[string]string) (*Unit, error) {
	u := &Unit{macros: map[string]Macro{}}
	for name, body := range predefined {
		tokens, err := lexLine(nil, body, 0)
		if err != nil {
			return nil, err
		}
		u.macros[name] = Macro{Name: name, Body: tokens}
	}
	text, err := stripComments(strings.ReplaceAll(src, "\r\n", "\n"))
	if err != nil {
		return nil, err
	}
	var conds conditions
	for number, line := range strings.Split(text, "\n") {
		number++
		tokens, err := lexLine(nil, line, number)
		if err != nil {
			if !conds.active() {
				continue
			}
			return nil, err
		}
		if len(tokens) > 0 && tokens[0].is("#") {
			err = u.directive(&conds, tokens[1:], line)
		} else if conds.active() {
			u.Tokens, err = u.expand(u.Tokens, tokens, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if len(conds) > 0 {
		return nil, fmt.Errorf("%d conditionals without #endif", len(conds))
	}
	return u, nil
}

// Expand returns the full expansion of a macro at the end of the file, and whether the macro exists.
func (u *Unit) Expand(name string) ([]Token, bool) {
	m, ok := u.macros[name]
	if !ok || m.Function {
		return nil, false
	}
	tokens, err := u.expand(nil, m.Body, []string{name})
	return tokens, err == nil
}

// conditions are the open #if's, innermost last.
type conditions []condition

type condition struct {
	taken   bool // this branch or an earlier one was active
	current bool // this branch is active
	outer   bool // the enclosing code is active
}

func (c conditions) active() bool {
	return len(c) == 0 || c[len(c)-1].current
}

func (u *Unit) directive(conds *conditions, tokens []Token, line string) error {
	if len(tokens) == 0 {
		return nil
	}
	word, rest := tokens[0].Text, tokens[1:]
	switch word {
	case "if", "ifdef", "ifndef":
		c := condition{outer: conds.active()}
		if c.outer {
			v, err := u.condition(word, rest)
			if err != nil {
				return err
			}
			c.current, c.taken = v, v
		}
		*conds = append(*conds, c)
		return nil
	case "elif", "else", "endif":
		if len(*conds) == 0 {
			return fmt.Errorf("#%s without #if", word)
		}
		return u.branch(conds, word, rest)
	}
	if !conds.active() {
		return nil
	}
	switch word {
	case "define":
		return u.define(rest, line)
	case "undef":
		if len(rest) > 0 {
			delete(u.macros, rest[0].Text)
		}
	case "include", "pragma":
	case "error":
		return fmt.Errorf("%s", strings.TrimSpace(line))
	default:
		return fmt.Errorf("unknown directive #%s", word)
	}
	return nil
}

func (u *Unit) branch(conds *conditions, word string, rest []Token) error {
	top := &(*conds)[len(*conds)-1]
	switch word {
	case "endif":
		*conds = (*conds)[:len(*conds)-1]
	case "else":
		top.current = top.outer && !top.taken
		top.taken = true
	case "elif":
		top.current = false
		if top.outer && !top.taken {
			v, err := u.condition("if", rest)
			if err != nil {
				return err
			}
			top.current, top.taken = v, v
		}
	}
	return nil
}

// condition evaluates the line of an #if, #ifdef or #ifndef.
func (u *Unit) condition(word string, tokens []Token) (bool, error) {
	if word != "if" {
		if len(tokens) == 0 {
			return false, fmt.Errorf("#%s without a name", word)
		}
		_, ok := u.macros[tokens[0].Text]
		return ok == (word == "ifdef"), nil
	}
	var plain []Token
	for i := 0; i < len(tokens); i++ {
		if !tokens[i].is("defined") {
			plain = append(plain, tokens[i])
			continue
		}
		for i++; i < len(tokens) && tokens[i].is("("); i++ {
		}
		if i >= len(tokens) {
			return false, fmt.Errorf("defined without a name")
		}
		value := "0"
		if _, ok := u.macros[tokens[i].Text]; ok {
			value = "1"
		}
		plain = append(plain, Token{Kind: Number, Text: value})
		if i+1 < len(tokens) && tokens[i+1].is(")") && i >= 1 && tokens[i-1].is("(") {
			i++
		}
	}
	expanded, err := u.expand(nil, plain, nil)
	if err != nil {
		return false, err
	}
	// C evaluates a name that is not a macro to 0.
	for i := range expanded {
		if expanded[i].Kind == Ident {
			expanded[i] = Token{Kind: Number, Text: "0"}
		}
	}
	v, err := evaluate(expanded, nil)
	return v != 0, err
}

func (u *Unit) define(tokens []Token, line string) error {
	if len(tokens) == 0 || tokens[0].Kind != Ident {
		return fmt.Errorf("#define without a name")
	}
	m := Macro{Name: tokens[0].Text}
	rest := tokens[1:]
	// Only a bracket directly after the name starts a list of parameters. The tokens do not contain spaces, so this
	// checks the line.
	after := line[strings.Index(line, "define")+len("define"):]
	after = after[strings.Index(after, m.Name)+len(m.Name):]
	if strings.HasPrefix(after, "(") {
		m.Function = true
		i := 1
		for ; i < len(rest) && !rest[i].is(")"); i++ {
			if rest[i].Kind == Ident {
				m.Params = append(m.Params, rest[i].Text)
			}
		}
		if i >= len(rest) {
			return fmt.Errorf("macro %s: arguments without a closing bracket", m.Name)
		}
		rest = rest[i+1:]
	}
	m.Body = rest
	u.macros[m.Name] = m
	u.Defined = append(u.Defined, m)
	return nil
}
