package main

import (
	"fmt"
	"strings"

	"modernc.org/cc/v4"
)

// macroConstants returns the numeric macros in order.
func (m *model) macroConstants() []*cc.Macro {
	var out []*cc.Macro
	enumerators := map[string]bool{}
	for _, e := range m.enums() {
		for _, v := range e.Enumerators() {
			enumerators[v.Token.SrcStr()] = true
		}
	}
	for _, macro := range m.header.macros {
		_, isNumber := number(macro.Value())
		if name := macro.Name.SrcStr(); isNumber && !enumerators[name] && m.target.constants.MatchString(name) {
			out = append(out, macro)
		}
	}
	return out
}

// enums returns the enumerations in the order of their typedefs.
func (m *model) enums() []*cc.EnumType {
	var out []*cc.EnumType
	seen := map[*cc.Enumerator]bool{}
	for _, d := range m.header.typedefs {
		if e, ok := d.typ.(*cc.EnumType); ok && d.alias == "" && m.target.wanted(d.name) && !seen[enumID(e)] {
			seen[enumID(e)] = true
			out = append(out, e)
		}
	}
	return out
}

func (m *model) constantNames() []string {
	var out []string
	for _, e := range m.enums() {
		for _, v := range e.Enumerators() {
			out = append(out, v.Token.SrcStr())
		}
	}
	for _, macro := range m.macroConstants() {
		out = append(out, macro.Name.SrcStr())
	}
	return out
}

// emitEnums writes every enumeration as an integer type with its constants.
func (m *model) emitEnums(w *writer) error {
	flags, err := m.flagWidths()
	if err != nil {
		return err
	}
	for _, e := range m.enums() {
		c := m.names.owners[enumID(e)]
		name := m.names.enums[enumID(e)]
		w.doc(name, m.typeDocs[c], c)
		base := enumBase(e)
		if bytes := flags[name]; bytes != 0 {
			base = fmt.Sprintf("uint%d", 8*bytes)
		}
		w.printf("type %s %s\n\n", name, base)
		if len(e.Enumerators()) == 0 {
			continue
		}
		w.printf("// Values of [%s].\nconst (\n", name)
		for _, v := range e.Enumerators() {
			c := v.Token.SrcStr()
			if text := m.typeDocs[c]; text != "" {
				w.comment("\t", m.target.constantName(c)+": "+text)
			}
			value, _ := number(v.Value())
			if value < 0 && flags[name] != 0 {
				value &= 1<<32 - 1 // the header has bit 31 in an int
			}
			w.printf("\t%s %s = %s\n", m.target.constantName(c), name, enumNumber(value))
		}
		w.printf(")\n\n")
	}
	return nil
}

// enumBase returns the integer type of an enumeration: 32 bits, signed if the values fit. Result is signed because this
// package's own codes are negative.
func enumBase(e *cc.EnumType) string {
	for _, v := range e.Enumerators() {
		if value, _ := number(v.Value()); value > 0x7fffffff {
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
	w.printf("// Constants that %s defines as macros.\nconst (\n", m.target.header)
	for _, macro := range m.macroConstants() {
		name, typ := macro.Name.SrcStr(), ""
		value, _ := number(macro.Value())
		if body := m.header.expanded[name]; strings.HasPrefix(body, "(") && (macro.Type().Kind() == cc.Ptr || m.target.wanted(typedefName(macro.Type()))) {
			var err error
			if typ, err = m.goType(macro.Type()); err != nil {
				return err
			}
			typ = strings.Replace(typ, "unsafe.Pointer", "uintptr", 1)
		} else if word.MatchString(body) {
			// An alias of an enumerator has the enumerator's type.
			w.printf("\t%s = %s // C: %s\n", m.target.constantName(name), m.target.constantName(body), name)
			continue
		}
		w.printf("\t%s %s = %s // C: %s\n", m.target.constantName(name), typ, enumNumber(value), name)
	}
	w.printf(")\n\n")
	return nil
}
