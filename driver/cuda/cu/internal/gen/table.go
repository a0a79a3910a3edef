package main

import (
	"maps"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// emitTable writes the table of functions and the indices with which the wrappers call them.
func (m *model) emitTable(w *writer, calls []*call) {
	w.printf("// HeaderVersion is the version of the cuda.h from which this package was generated.\n")
	w.printf("const HeaderVersion Version = %d\n\n", m.version)
	w.printf("const (\n")
	for i, c := range calls {
		if i == 0 {
			w.printf("\t%s function = iota\n", c.index())
			continue
		}
		w.printf("\t%s\n", c.index())
	}
	w.printf("\tfunctionCount\n)\n\n")
	w.printf("var table = [functionCount]entry{\n")
	for _, c := range calls {
		name := c.name
		if c.newer != nil {
			name = c.symbol
		}
		w.printf("\t%s: {name: %q, goName: %q, symbol: %q", c.index(), name, c.goName, c.symbol)
		if c.perThread != "" {
			w.printf(", perThread: %q", c.perThread)
		}
		w.printf(", since: %d", c.since)
		if c.newer != nil {
			w.printf(", replaced: %d", c.newer.since)
		}
		if c.deprecated {
			w.printf(", deprecated: true")
		}
		w.printf("},\n")
	}
	w.printf("}\n\n")

	w.printf("// resultNames maps codes to their names and meanings.\nvar resultNames = map[Result]resultName{\n")
	for _, e := range m.enums() {
		if m.names.owners[enumID(e)] != m.target.result {
			continue
		}
		for _, v := range e.Enumerators() {
			c := v.Token.SrcStr()
			w.printf("\t%s: {%q, %q},\n", m.target.goName(c), c, m.typeDocs[c])
		}
	}
	w.printf("}\n\n")
	w.printf("// unboundSymbols are the forms from before CUDA 3.2, with device pointers and sizes of 32 bits.\n")
	w.printf("var unboundSymbols = []string{\n")
	for _, s := range m.left {
		w.printf("\t%q,\n", s)
	}
	w.printf("}\n\n")
}

// emitLayout writes the tables of Go's layout of the records, for the layout test.
func (m *model) emitLayout(w *writer) error {
	w.printf("// goLayouts are the Go layouts of the records, including the fields of nested records.\n")
	w.printf("var goLayouts = map[string]layout{\n")
	for _, c := range slices.Sorted(maps.Keys(m.names.first)) {
		r, name := m.names.first[c], m.names.types[c]
		w.printf("\t%q: {Size: unsafe.Sizeof(%s{}), Align: unsafe.Alignof(%s{}), Fields: map[string]uintptr{\n", c, name, name)
		m.layoutFields(w, "", "0", r)
		w.printf("\t}},\n")
	}
	w.printf("}\n\n")
	w.printf("// goSizes are the Go sizes of the other types.\nvar goSizes = map[string]uintptr{\n")
	for _, d := range m.header.typedefs {
		if m.target.wanted(d.name) && m.names.now(d.name) == d.name && !isRecord(d.typ) {
			w.printf("\t%q: unsafe.Sizeof(*new(%s)),\n", d.name, m.names.types[d.name])
		}
	}
	w.printf("}\n\n")
	return nil
}

// layoutFields writes the offsets of a record's fields, including the fields of records defined inside it. base is the
// expression for the record's offset, cPath the C prefix of a field's name.
func (m *model) layoutFields(w *writer, cPath, base string, r cc.Type) {
	name := m.names.records[recordID(r)]
	for _, f := range fields(r) {
		offset := base
		if r.Kind() == cc.Struct {
			field := exported(f.Name())
			if f.Name() == "" {
				field = m.names.records[recordID(f.Type())]
			}
			offset += " + unsafe.Offsetof(" + name + "{}." + field + ")"
		}
		path := cPath + f.Name()
		if f.Name() != "" {
			w.printf("\t\t%q: %s,\n", path, strings.TrimPrefix(offset, "0 + "))
			path += "."
		}
		if t := f.Type(); isRecord(t) && !m.names.named[recordID(t)] {
			m.layoutFields(w, path, offset, t)
		}
	}
}
