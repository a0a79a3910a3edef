package cheader

import (
	"fmt"
	"strings"
)

// attributes holds the supported attributes of a declaration.
type attributes struct {
	deprecated bool
	typedef    bool
	align      int64
}

// attributes reads __attribute__((...)) and _Alignas(...).
func (p *parser) attributes(a *attributes) error {
	for {
		t := p.peek()
		switch {
		case t.is("__attribute__"), t.is("_Alignas"), t.is("alignas"):
			p.pos++
			from := p.pos
			if err := p.skipBrackets("(", ")"); err != nil {
				return err
			}
			inside := p.tokens[from:p.pos]
			if !t.is("__attribute__") {
				n, err := evaluate(inside, p)
				if err != nil {
					return err
				}
				if n < 0 || n > 1<<16 || n&(n-1) != 0 {
					return fmt.Errorf("alignment of %d", n)
				}
				a.align = max(a.align, n)
			}
			for _, i := range inside {
				a.deprecated = a.deprecated || i.is("deprecated") || i.is("__deprecated__")
			}
		case t.is("__extension__"):
			p.pos++
		default:
			return nil
		}
	}
}

var builtin = map[string]*Type{
	"size_t":   {Kind: Int, Bytes: 8},
	"int8_t":   {Kind: Int, Bytes: 1, Signed: true},
	"uint8_t":  {Kind: Int, Bytes: 1},
	"int16_t":  {Kind: Int, Bytes: 2, Signed: true},
	"uint16_t": {Kind: Int, Bytes: 2},
	"int32_t":  {Kind: Int, Bytes: 4, Signed: true},
	"uint32_t": {Kind: Int, Bytes: 4},
	"int64_t":  {Kind: Int, Bytes: 8, Signed: true},
	"uint64_t": {Kind: Int, Bytes: 8},
}

const (
	arithmetic = " void char short int long float double signed unsigned "
	qualifiers = " const volatile restrict __restrict extern static inline __inline __inline__ register "
)

func within(list, word string) bool { return strings.Contains(list, " "+word+" ") }

// startsType reports whether a token can begin a type.
func (p *parser) startsType(t Token) bool {
	if t.Kind != Ident {
		return false
	}
	if within(arithmetic, t.Text) || within(qualifiers, t.Text) || within(" struct union enum ", t.Text) {
		return true
	}
	_, named := p.header.typedefs[t.Text]
	_, known := builtin[t.Text]
	return named || known
}

// specifiers reads the part of a declaration before the declarator: qualifiers, attributes and a base type.
func (p *parser) specifiers() (*Type, attributes, error) {
	var a attributes
	var words []string
	var t *Type
	for {
		if err := p.attributes(&a); err != nil {
			return nil, a, err
		}
		w := p.peek()
		switch {
		case w.Kind != Ident:
		case w.Text == "typedef":
			p.pos++
			a.typedef = true
			continue
		case within(qualifiers, w.Text):
			p.pos++
			continue
		case within(arithmetic, w.Text) && t == nil:
			p.pos++
			words = append(words, w.Text)
			continue
		case within(" struct union enum ", w.Text) && t == nil && words == nil:
			var err error
			if t, err = p.tagged(); err != nil {
				return nil, a, err
			}
			continue
		case t == nil && words == nil:
			if named, ok := p.header.typedefs[w.Text]; ok {
				p.pos++
				t = named
				continue
			}
			if known, ok := builtin[w.Text]; ok {
				p.pos++
				t = known
				continue
			}
		}
		break
	}
	if t == nil {
		var err error
		if t, err = plain(words); err != nil {
			return nil, a, fmt.Errorf("%w before %s", err, p.peek())
		}
	}
	return t, a, nil
}

// plain returns the arithmetic type of a combination of keywords.
func plain(words []string) (*Type, error) {
	count := map[string]int{}
	for _, w := range words {
		count[w]++
	}
	t := &Type{Kind: Int, Bytes: 4, Signed: count["unsigned"] == 0}
	switch {
	case len(words) == 0:
		return nil, fmt.Errorf("no type")
	case count["void"] > 0:
		return &Type{Kind: Void}, nil
	case count["float"] > 0:
		return &Type{Kind: Float, Bytes: 4}, nil
	case count["double"] > 0 && count["long"] == 0:
		return &Type{Kind: Float, Bytes: 8}, nil
	case count["char"] > 0:
		t.Bytes = 1
		t.Char = count["unsigned"]+count["signed"] == 0
	case count["short"] > 0:
		t.Bytes = 2
	case count["long"] > 0:
		t.Bytes = 8
	}
	return t, nil
}

// tagged reads a struct, union or enum, with its body if there is one.
func (p *parser) tagged() (*Type, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("types nested more than %d deep", maxNesting)
	}
	defer func() { p.depth-- }()
	word := p.next().Text
	tag := ""
	if p.peek().Kind == Ident {
		tag = p.next().Text
	}
	if word == "enum" {
		return p.enum(tag)
	}
	r := p.header.records[tag]
	if r == nil || tag == "" {
		r = &Record{Tag: tag, Union: word == "union"}
		if tag != "" {
			p.header.records[tag] = r
		}
	}
	if p.accept("{") {
		if r.Complete {
			return nil, fmt.Errorf("%s %s is defined twice", word, tag)
		}
		if err := p.fields(r); err != nil {
			return nil, err
		}
		if err := r.lay(); err != nil {
			return nil, fmt.Errorf("%s %s: %w", word, tag, err)
		}
		r.Complete = true
	}
	return &Type{Kind: RecordKind, Record: r}, nil
}

func (p *parser) fields(r *Record) error {
	for !p.accept("}") {
		base, a, err := p.specifiers()
		if err != nil {
			return err
		}
		r.MinAlign = max(r.MinAlign, a.align)
		if p.accept(";") {
			r.Fields = append(r.Fields, Field{Type: base})
			continue
		}
		for {
			name, t, err := p.declarator(base, 0)
			if err != nil {
				return err
			}
			if name == "" {
				return fmt.Errorf("field without a name before %s", p.peek())
			}
			r.Fields = append(r.Fields, Field{Name: name, Type: t})
			if !p.accept(",") {
				break
			}
		}
		if err := p.expect(";"); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) enum(tag string) (*Type, error) {
	e := p.header.enums[tag]
	if e == nil || tag == "" {
		e = &Enum{Tag: tag}
		if tag != "" {
			p.header.enums[tag] = e
		}
	}
	if p.accept("{") {
		var value int64
		for !p.accept("}") {
			name := p.next()
			if name.Kind != Ident {
				return nil, fmt.Errorf("%s instead of an enumerator", name)
			}
			if p.accept("=") {
				var err error
				if value, err = p.constantUntil(",", "}"); err != nil {
					return nil, fmt.Errorf("%s: %w", name.Text, err)
				}
			}
			e.Values = append(e.Values, Enumerator{name.Text, value})
			p.header.constants[name.Text] = Value{bits: uint64(value), size: 8, signed: true}
			value++
			if !p.accept(",") && !p.peek().is("}") {
				return nil, fmt.Errorf("%s after enumerator %s", p.peek(), name.Text)
			}
		}
	}
	return &Type{Kind: EnumKind, Enum: e}, nil
}

// constantUntil evaluates the expression that ends before one of the given tokens at the same bracket level.
func (p *parser) constantUntil(ends ...string) (int64, error) {
	from, depth := p.pos, 0
	for ; p.pos < len(p.tokens); p.pos++ {
		t := p.peek()
		if t.is("(") {
			depth++
		} else if t.is(")") {
			depth--
		}
		for _, end := range ends {
			if depth == 0 && t.is(end) {
				return evaluate(p.tokens[from:p.pos], p)
			}
		}
	}
	return 0, fmt.Errorf("unterminated expression")
}

// declarator reads a declarator around a base type: pointers, a name or a bracketed declarator, arrays and parameters.
func (p *parser) declarator(base *Type, depth int) (string, *Type, error) {
	if depth > maxNesting {
		return "", nil, fmt.Errorf("declarators nested more than %d deep", maxNesting)
	}
	t := base
	for {
		if p.accept("*") {
			t = &Type{Kind: Pointer, Elem: t}
		} else if w := p.peek(); w.Kind == Ident && within(qualifiers, w.Text) {
			p.pos++
		} else {
			break
		}
	}
	if p.peek().is("(") && p.pos+1 < len(p.tokens) && (p.tokens[p.pos+1].is("*") || p.tokens[p.pos+1].is("(")) {
		p.pos++
		hole := &Type{}
		name, outer, err := p.declarator(hole, depth+1)
		if err != nil {
			return "", nil, err
		}
		if err := p.expect(")"); err != nil {
			return "", nil, err
		}
		inner, err := p.suffixes(t, depth)
		if err != nil {
			return "", nil, err
		}
		*hole = *inner
		return name, outer, nil
	}
	name := ""
	if w := p.peek(); w.Kind == Ident {
		name = p.next().Text
	}
	t, err := p.suffixes(t, depth)
	return name, t, err
}

func (p *parser) suffixes(t *Type, depth int) (*Type, error) {
	switch {
	case p.accept("["):
		n := int64(0)
		if !p.peek().is("]") {
			var err error
			if n, err = p.constantUntil("]"); err != nil {
				return nil, err
			}
		}
		if n < 0 || n > maxBytes {
			return nil, fmt.Errorf("array of %d", n)
		}
		if err := p.expect("]"); err != nil {
			return nil, err
		}
		if depth > maxNesting {
			return nil, fmt.Errorf("declarators nested more than %d deep", maxNesting)
		}
		elem, err := p.suffixes(t, depth+1)
		if err != nil {
			return nil, err
		}
		a := &Type{Kind: Array, Elem: elem, Len: n}
		return a, nil
	case p.accept("("):
		params, err := p.params(depth)
		return &Type{Kind: Func, Elem: t, Params: params}, err
	}
	return t, nil
}

func (p *parser) params(depth int) ([]Field, error) {
	var params []Field
	for !p.accept(")") {
		if p.accept("...") {
			continue
		}
		base, _, err := p.specifiers()
		if err != nil {
			return nil, err
		}
		name, t, err := p.declarator(base, depth+1)
		if err != nil {
			return nil, err
		}
		if t.Kind == Array {
			t = &Type{Kind: Pointer, Elem: t.Elem}
		}
		if t.Kind != Void {
			params = append(params, Field{Name: name, Type: t})
		}
		if !p.accept(",") && !p.peek().is(")") {
			return nil, fmt.Errorf("%s among the parameters", p.peek())
		}
	}
	return params, nil
}
