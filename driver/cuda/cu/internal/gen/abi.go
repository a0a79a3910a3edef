package main

import (
	"fmt"
	"slices"

	"modernc.org/cc/v4"
)

// arch is a calling convention: the number of integer registers for arguments, and how structs are passed by value.
type arch struct {
	name      string
	registers int
	// largeOnStack reports how a struct of more than 16 bytes is passed: as words on the stack (System V class MEMORY)
	// if true, as the address of a copy (AAPCS64 rule B.4) if false.
	largeOnStack bool
}

var (
	amd64 = arch{name: "amd64", registers: 6, largeOnStack: true}
	arm64 = arch{name: "arm64", registers: 8}
)

// param is a parameter with its Go name and type and its class in the calling conventions.
type param struct {
	name   string
	goType string
	class  class
	words  int  // size of a struct by value
	output bool // the function stores a value in it
}

type class uint8

const (
	integer class = iota // passed in a word: uintptr(x)
	pointer              // *T: uintptr(unsafe.Pointer(x))
	float                // float32, in a floating-point register
	record               // struct by value
)

func (m *model) params(f *function) ([]param, error) {
	var out []param
	for i, p := range f.decl.params {
		q := param{name: paramName(p.Name(), i)}
		if slices.ContainsFunc(out, func(o param) bool { return o.name == q.name }) {
			return nil, fmt.Errorf("%s: two parameters called %s", f.name, q.name)
		}
		var err error
		q.goType = m.flagsType(f, p.Name(), p.Type().Decay())
		if override := m.target.override(f.name, p.Name()); override != "" {
			q.goType = override
		}
		if q.goType == "" {
			if q.goType, err = m.goType(p.Type().Decay()); err != nil {
				return nil, fmt.Errorf("%s: parameter %s: %w", f.name, p.Name(), err)
			}
		}
		switch t := p.Type().Decay(); {
		case q.goType[0] == '*':
			q.class = pointer
		case t.Kind() == cc.Float:
			q.class = float
		case isRecord(t):
			q.class = record
			if err := classify(t, &q); err != nil {
				return nil, fmt.Errorf("%s: parameter %s: %w", f.name, p.Name(), err)
			}
		case cc.IsFloatingPointType(t):
			return nil, fmt.Errorf("%s: parameter %s cannot be passed", f.name, p.Name())
		}
		out = append(out, q)
	}
	return out, nil
}

// classify rejects records whose passing depends on more than their size. Records with floating-point members would use
// floating-point registers, and records aligned to 16 bytes or more would use even registers.
func classify(r cc.Type, p *param) error {
	if r.Size()%8 != 0 || r.Align() > 8 || hasFloat(r) {
		return fmt.Errorf("%s of %d bytes by value is not supported", r, r.Size())
	}
	p.words = int(r.Size() / 8)
	return nil
}

func hasFloat(r cc.Type) bool {
	return slices.ContainsFunc(fields(r), func(f *cc.Field) bool {
		t := f.Type()
		for t.Kind() == cc.Array {
			t = t.(*cc.ArrayType).Elem()
		}
		return cc.IsFloatingPointType(t) || isRecord(t) && hasFloat(t)
	})
}

// words returns the expressions for the machine words of a call, registers first and then the stack. If the stack
// begins before all registers are used, the unused ones are "0". before are statements that must precede the call.
func (a arch) words(params []param) (before []string, words []string) {
	var registers, stack []string
	full := false
	for _, p := range params {
		var ws []string
		toStack := false
		switch p.class {
		case integer:
			ws = []string{"uintptr(" + p.name + ")"}
		case pointer:
			ws = []string{"uintptr(unsafe.Pointer(" + p.name + "))"}
		case record:
			toStack = p.words > 2 && a.largeOnStack
			if p.words > 2 && !a.largeOnStack {
				ws = []string{"uintptr(unsafe.Pointer(&" + p.name + "))"}
				break
			}
			for i := range p.words {
				ws = append(ws, fmt.Sprintf("%sWords[%d]", p.name, i))
			}
			before = append(before, fmt.Sprintf("%sWords := (*[%d]uintptr)(unsafe.Pointer(&%s))", p.name, p.words, p.name))
		}
		// A struct of two words is passed on the stack if only one register is left. System V lets later arguments use
		// that register, AAPCS64 (rule C.13) does not.
		if toStack || len(registers)+len(ws) > a.registers || full {
			stack = append(stack, ws...)
			if !toStack && !a.largeOnStack {
				full = true
			}
			continue
		}
		registers = append(registers, ws...)
	}
	for len(stack) > 0 && len(registers) < a.registers {
		registers = append(registers, "0")
	}
	return before, append(registers, stack...)
}
