package cheader

import "fmt"

// Header contains the declarations of a file.
type Header struct {
	// Typedefs are all typedefs in order.
	Typedefs []TypedefDecl
	// Functions are all function declarations in order. A function that is declared twice occurs twice.
	Functions []Function

	typedefs  map[string]*Type
	records   map[string]*Record
	enums     map[string]*Enum
	constants map[string]Value
}

// TypedefDecl is one typedef.
type TypedefDecl struct {
	// Name is the new name.
	Name string
	// Type is the type that Name denotes.
	Type *Type
}

// Function is a function declaration.
type Function struct {
	// Name is the function's name after macro expansion, which is the symbol's name.
	Name string
	// Result is the function's return type.
	Result *Type
	// Params are the function's parameters. It is empty for (void).
	Params []Field
	// Deprecated reports whether the declaration has the deprecated attribute.
	Deprecated bool
}

// Parse reads the declarations of a preprocessed file. It skips definitions of functions.
func Parse(u *Unit) (*Header, error) {
	p := &parser{tokens: u.Tokens, header: &Header{
		typedefs:  map[string]*Type{},
		records:   map[string]*Record{},
		enums:     map[string]*Enum{},
		constants: map[string]Value{},
	}}
	for p.pos < len(p.tokens) {
		line := p.peek().Line
		if err := p.declaration(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	return p.header, nil
}

// Typedef returns the type of a typedef.
func (h *Header) Typedef(name string) (*Type, bool) {
	t, ok := h.typedefs[name]
	return t, ok
}

// Constant evaluates a constant expression with the header's types and enumerators.
func (h *Header) Constant(tokens []Token) (Value, error) {
	return evaluateValue(tokens, &parser{header: h})
}

// CastType returns the type in an expression of the form ((type)value) or (type)value, or nil.
func (h *Header) CastType(tokens []Token) *Type {
	for len(tokens) > 2 && tokens[0].is("(") && tokens[1].is("(") {
		tokens = tokens[1:]
	}
	p := &parser{header: h}
	if len(tokens) < 3 || !tokens[0].is("(") || !p.startsType(tokens[1]) {
		return nil
	}
	t, err := (&evaluator{tokens: tokens, pos: 1, types: p}).bracketType()
	if err != nil {
		return nil
	}
	return t
}

type parser struct {
	tokens []Token
	pos    int
	depth  int
	header *Header
}

func (p *parser) peek() Token {
	if p.pos < len(p.tokens) {
		return p.tokens[p.pos]
	}
	return Token{}
}

func (p *parser) next() Token {
	t := p.peek()
	p.pos++
	return t
}

// accept skips the next token if it is text, and reports whether it was.
func (p *parser) accept(text string) bool {
	if p.peek().is(text) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(text string) error {
	if t := p.next(); !t.is(text) {
		return fmt.Errorf("%s instead of %q", t, text)
	}
	return nil
}

// skipBrackets skips all tokens up to the bracket that closes the one at the current position.
func (p *parser) skipBrackets(open, closing string) error {
	depth := 0
	for p.pos < len(p.tokens) {
		switch t := p.next(); {
		case t.is(open):
			depth++
		case t.is(closing):
			if depth--; depth == 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("%q without %q", open, closing)
}

func (p *parser) declaration() error {
	if p.accept(";") {
		return nil
	}
	if t := p.peek(); t.is("_Static_assert") || t.is("static_assert") {
		p.pos++
		if err := p.skipBrackets("(", ")"); err != nil {
			return err
		}
		return p.expect(";")
	}
	isTypedef := p.accept("typedef")
	base, attrs, err := p.specifiers()
	if err != nil {
		return err
	}
	isTypedef = isTypedef || attrs.typedef
	if p.accept(";") {
		return nil
	}
	for {
		name, t, err := p.declarator(base, 0)
		if err != nil {
			return err
		}
		switch {
		case name == "":
			return fmt.Errorf("declaration without a name before %s", p.peek())
		case isTypedef:
			p.header.Typedefs = append(p.header.Typedefs, TypedefDecl{name, t})
			p.header.typedefs[name] = &Type{Kind: Typedef, Name: name, Elem: t}
		case t.Kind == Func:
			if p.peek().is("{") {
				return p.skipBrackets("{", "}")
			}
			p.header.Functions = append(p.header.Functions,
				Function{Name: name, Result: t.Elem, Params: t.Params, Deprecated: attrs.deprecated})
		}
		if err := p.attributes(&attrs); err != nil {
			return err
		}
		if !p.accept(",") {
			return p.expect(";")
		}
	}
}
