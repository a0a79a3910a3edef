package main

import (
	"sort"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu/internal/cheader"
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
		if m.names.owners[e] != "CUresult" {
			continue
		}
		for _, v := range e.Values {
			w.printf("\t%s: {%q, %q},\n", goName(v.Name), v.Name, m.typeDocs[v.Name])
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
	var rows []string
	byName := map[string]*cheader.Record{}
	for r, c := range m.names.first {
		rows = append(rows, c)
		byName[c] = r
	}
	sort.Strings(rows)
	for _, c := range rows {
		r, name := byName[c], m.names.types[c]
		w.printf("\t%q: {Size: unsafe.Sizeof(%s{}), Align: unsafe.Alignof(%s{}), Fields: map[string]uintptr{\n", c, name, name)
		m.layoutFields(w, "", "0", r)
		w.printf("\t}},\n")
	}
	w.printf("}\n\n")
	w.printf("// goSizes are the Go sizes of the other types.\nvar goSizes = map[string]uintptr{\n")
	for _, d := range m.header.Typedefs {
		if wanted(d.Name) && m.names.now(d.Name) == d.Name && d.Type.Resolve().Kind != cheader.RecordKind {
			w.printf("\t%q: unsafe.Sizeof(*new(%s)),\n", d.Name, m.names.types[d.Name])
		}
	}
	w.printf("}\n\n")
	return nil
}

// layoutFields writes the offsets of a record's fields, including the fields of records defined inside it. base is the
// expression for the record's offset, cPath the C prefix of a field's name.
func (m *model) layoutFields(w *writer, cPath, base string, r *cheader.Record) {
	name := m.names.records[r]
	for _, f := range r.Fields {
		offset := base
		if !r.Union {
			field := exported(f.Name)
			if f.Name == "" {
				field = m.names.records[f.Type.Record]
			}
			offset += " + unsafe.Offsetof(" + name + "{}." + field + ")"
		}
		path := cPath + f.Name
		if f.Name != "" {
			w.printf("\t\t%q: %s,\n", path, strings.TrimPrefix(offset, "0 + "))
			path += "."
		}
		if t := f.Type; t.Kind == cheader.RecordKind && m.names.first[t.Record] == "" {
			m.layoutFields(w, path, offset, t.Record)
		}
	}
}
