package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu/internal/cheader"
)

var constantMacro = regexp.MustCompile(`^(CU|CUDA)_[A-Z0-9_]+$`)

// macroConstants returns the numeric macros in order.
func (m *model) macroConstants() []cheader.Macro {
	var out []cheader.Macro
	enumerators := map[string]bool{}
	for _, e := range m.enums() {
		for _, v := range e.Values {
			enumerators[v.Name] = true
		}
	}
	seen := map[string]bool{}
	for _, macro := range m.unit.Defined {
		if macro.Function || len(macro.Body) == 0 || seen[macro.Name] || enumerators[macro.Name] ||
			!constantMacro.MatchString(macro.Name) {
			continue
		}
		body, ok := m.unit.Expand(macro.Name)
		if !ok {
			continue
		}
		if _, err := m.header.Constant(body); err != nil {
			continue
		}
		seen[macro.Name] = true
		out = append(out, macro)
	}
	return out
}

// enums returns the enumerations in the order of their typedefs.
func (m *model) enums() []*cheader.Enum {
	var out []*cheader.Enum
	seen := map[*cheader.Enum]bool{}
	for _, d := range m.header.Typedefs {
		if d.Type.Kind == cheader.EnumKind && wanted(d.Name) && !seen[d.Type.Enum] {
			seen[d.Type.Enum] = true
			out = append(out, d.Type.Enum)
		}
	}
	return out
}

func (m *model) constantNames() []string {
	var out []string
	for _, e := range m.enums() {
		for _, v := range e.Values {
			out = append(out, v.Name)
		}
	}
	for _, macro := range m.macroConstants() {
		out = append(out, macro.Name)
	}
	return out
}

// emitEnums writes every enumeration as an integer type with its constants.
func (m *model) emitEnums(w *writer) {
	for _, e := range m.enums() {
		c := m.names.owners[e]
		name := m.names.enums[e]
		w.doc(name, m.typeDocs[c], c)
		w.printf("type %s %s\n\n", name, enumBase(c, e))
		if len(e.Values) == 0 {
			continue
		}
		w.printf("// Values of [%s].\nconst (\n", name)
		for _, v := range e.Values {
			if text := m.typeDocs[v.Name]; text != "" {
				w.comment("\t", goName(v.Name)+": "+text)
			}
			w.printf("\t%s %s = %s\n", goName(v.Name), name, enumNumber(v.Value))
		}
		w.printf(")\n\n")
	}
}

// enumBase returns the integer type of an enumeration: 32 bits, signed if the values fit. Result is signed because this
// package's own codes are negative.
func enumBase(c string, e *cheader.Enum) string {
	for _, v := range e.Values {
		if v.Value > 0x7fffffff {
			return "uint32"
		}
	}
	return "int32"
}

func enumNumber(v int64) string {
	if v >= 0x100 && v&(v-1) == 0 || v > 0xffffff {
		return fmt.Sprintf("%#x", v)
	}
	return fmt.Sprint(v)
}

// emitMacros writes the constants that the header defines as macros.
func (m *model) emitMacros(w *writer) error {
	w.printf("// Constants that cuda.h defines as macros.\nconst (\n")
	for _, macro := range m.macroConstants() {
		body, _ := m.unit.Expand(macro.Name)
		value, err := m.header.Constant(body)
		if err != nil {
			return err
		}
		typ := ""
		if t := m.header.CastType(body); t != nil {
			if typ, err = m.goType(t); err != nil {
				return err
			}
			typ = strings.Replace(typ, "unsafe.Pointer", "uintptr", 1)
		} else if len(body) == 1 && body[0].Kind == cheader.Ident {
			// An alias of an enumerator has the enumerator's type.
			w.printf("\t%s = %s // C: %s\n", goName(macro.Name), goName(body[0].Text), macro.Name)
			continue
		}
		w.printf("\t%s %s = %s // C: %s\n", goName(macro.Name), typ, enumNumber(value.Int64()), macro.Name)
	}
	w.printf(")\n\n")
	return nil
}
