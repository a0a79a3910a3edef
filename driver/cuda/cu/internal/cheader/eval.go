package cheader

import (
	"fmt"
	"strconv"
	"strings"
)

// Value is an integer constant with its C type: 4 or 8 bytes, signed or unsigned.
type Value struct {
	bits   uint64
	size   int
	signed bool
}

// Int64 returns the constant as a signed number. An unsigned 64-bit constant of 1<<63 or more becomes negative.
func (v Value) Int64() int64 {
	if v.size == 4 && v.signed {
		return int64(int32(v.bits))
	}
	if v.size == 4 {
		return int64(uint32(v.bits))
	}
	return int64(v.bits)
}

func (v Value) fit() Value {
	if v.size == 4 {
		v.bits = uint64(uint32(v.bits))
	}
	return v
}

// evaluate computes an integer constant expression. p resolves types and enumerators. If it is nil, there are none.
func evaluate(tokens []Token, p *parser) (int64, error) {
	v, err := evaluateValue(tokens, p)
	return v.Int64(), err
}

func evaluateValue(tokens []Token, p *parser) (Value, error) {
	e := &evaluator{tokens: tokens, types: p}
	v, err := e.binary(0)
	if err != nil {
		return Value{}, err
	}
	if e.pos < len(tokens) {
		return Value{}, fmt.Errorf("%s after the expression", tokens[e.pos])
	}
	return v, nil
}

type evaluator struct {
	tokens []Token
	pos    int
	depth  int
	types  *parser
}

// maxNesting limits nested brackets and declarators.
const maxNesting = 100

func (e *evaluator) peek() Token {
	if e.pos < len(e.tokens) {
		return e.tokens[e.pos]
	}
	return Token{}
}

var precedence = map[string]int{
	"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
	"<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}

func (e *evaluator) binary(lowest int) (Value, error) {
	if e.depth++; e.depth > maxNesting {
		return Value{}, fmt.Errorf("expression nested more than %d deep", maxNesting)
	}
	defer func() { e.depth-- }()
	left, err := e.unary()
	if err != nil {
		return Value{}, err
	}
	for {
		op := e.peek()
		level := precedence[op.Text]
		if op.Kind != Punct || level == 0 || level <= lowest {
			return left, nil
		}
		e.pos++
		right, err := e.binary(level)
		if err != nil {
			return Value{}, err
		}
		if left, err = apply(op.Text, left, right); err != nil {
			return Value{}, err
		}
	}
}

func (e *evaluator) unary() (Value, error) {
	if e.depth++; e.depth > maxNesting {
		return Value{}, fmt.Errorf("expression nested more than %d deep", maxNesting)
	}
	defer func() { e.depth-- }()
	t := e.peek()
	e.pos++
	switch {
	case t.Kind == Number:
		return number(t.Text)
	case t.is("-"), t.is("~"), t.is("!"), t.is("+"):
		v, err := e.unary()
		switch t.Text {
		case "-":
			v.bits = -v.bits
		case "~":
			v.bits = ^v.bits
		case "!":
			v = truth(v.bits == 0)
		}
		return v.fit(), err
	case t.is("sizeof"):
		return e.sizeof()
	case t.is("("):
		if e.types != nil && e.types.startsType(e.peek()) {
			return e.cast()
		}
		v, err := e.binary(0)
		if err == nil && !e.peek().is(")") {
			err = fmt.Errorf("%s instead of a closing bracket", e.peek())
		}
		e.pos++
		return v, err
	case t.Kind == Ident && e.types != nil:
		if v, ok := e.types.header.constants[t.Text]; ok {
			return v, nil
		}
	}
	return Value{}, fmt.Errorf("%s is not a constant", t)
}

// bracketType reads "type)" after an opening bracket.
func (e *evaluator) bracketType() (*Type, error) {
	end := e.pos
	for end < len(e.tokens) && !e.tokens[end].is(")") {
		end++
	}
	if end == len(e.tokens) {
		return nil, fmt.Errorf("type without a closing bracket")
	}
	sub := &parser{tokens: e.tokens[e.pos:end], header: e.types.header}
	e.pos = end + 1
	base, _, err := sub.specifiers()
	if err != nil {
		return nil, err
	}
	_, t, err := sub.declarator(base, 0)
	if err == nil && sub.pos < len(sub.tokens) {
		err = fmt.Errorf("%s inside a type", sub.peek())
	}
	return t, err
}

func (e *evaluator) sizeof() (Value, error) {
	if !e.peek().is("(") || e.types == nil {
		return Value{}, fmt.Errorf("sizeof of %s", e.peek())
	}
	e.pos++
	t, err := e.bracketType()
	if err != nil {
		return Value{}, err
	}
	size, err := t.Size()
	return Value{bits: uint64(size), size: 8}, err
}

func (e *evaluator) cast() (Value, error) {
	t, err := e.bracketType()
	if err != nil {
		return Value{}, err
	}
	v, err := e.unary()
	if err != nil {
		return Value{}, err
	}
	size, err := t.Size()
	if err != nil {
		return Value{}, err
	}
	wide := v.Int64()
	r := t.Resolve()
	v = Value{bits: uint64(wide), size: 4, signed: r.Kind == Int && r.Signed}
	if size == 8 {
		v.size = 8
	}
	return v.fit(), nil
}

func truth(b bool) Value {
	v := Value{size: 4, signed: true}
	if b {
		v.bits = 1
	}
	return v
}

func apply(op string, a, b Value) (Value, error) {
	x, y := a.Int64(), b.Int64()
	switch op {
	case "||":
		return truth(x != 0 || y != 0), nil
	case "&&":
		return truth(x != 0 && y != 0), nil
	case "==":
		return truth(x == y), nil
	case "!=":
		return truth(x != y), nil
	case "<":
		return truth(x < y), nil
	case ">":
		return truth(x > y), nil
	case "<=":
		return truth(x <= y), nil
	case ">=":
		return truth(x >= y), nil
	}
	r := Value{size: max(a.size, b.size), signed: a.signed && b.signed}
	if op == "<<" || op == ">>" {
		r = Value{size: a.size, signed: a.signed}
		if y < 0 || y >= int64(8*a.size) {
			return Value{}, fmt.Errorf("shift by %d", y)
		}
	}
	if (op == "/" || op == "%") && y == 0 {
		return Value{}, fmt.Errorf("division by zero")
	}
	var n int64
	switch op {
	case "|":
		n = x | y
	case "^":
		n = x ^ y
	case "&":
		n = x & y
	case "<<":
		n = x << y
	case ">>":
		n = x >> y
	case "+":
		n = x + y
	case "-":
		n = x - y
	case "*":
		n = x * y
	case "/":
		n = x / y
	case "%":
		n = x % y
	}
	r.bits = uint64(n)
	return r.fit(), nil
}

// number parses an integer constant with its suffixes and determines its type in C.
func number(text string) (Value, error) {
	digits := strings.TrimRight(text, "uUlL")
	suffix := strings.ToLower(text[len(digits):])
	n, err := strconv.ParseUint(digits, 0, 64)
	if err != nil {
		return Value{}, fmt.Errorf("%q is not an integer constant", text)
	}
	v := Value{bits: n, size: 4, signed: !strings.Contains(suffix, "u")}
	decimal := digits[0] != '0'
	if strings.Contains(suffix, "l") || n > 0xffffffff || v.signed && decimal && n > 0x7fffffff {
		v.size = 8
	}
	if v.size == 4 && n > 0x7fffffff || n > 0x7fffffffffffffff {
		v.signed = false
	}
	return v, nil
}
