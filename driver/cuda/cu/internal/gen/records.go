package main

import (
	"fmt"

	"modernc.org/cc/v4"
)

// documentedTypes returns the typedefs that become a Go type and need a comment.
func (m *model) documentedTypes() []string {
	var out []string
	seen := map[string]bool{}
	for _, d := range m.header.typedefs {
		if !m.target.wanted(d.name) {
			continue
		}
		c := m.names.now(d.name)
		if !seen[c] {
			seen[c] = true
			out = append(out, c)
		}
	}
	return out
}

// emitTypes writes all types except enumerations: handles, numbers, callbacks, aliases and records.
func (m *model) emitTypes(w *writer) error {
	done := map[string]bool{}
	for _, d := range m.header.typedefs {
		c := m.names.now(d.name)
		if !m.target.wanted(d.name) || done[c] || d.alias == "" && d.typ.Kind() == cc.Enum {
			continue
		}
		name := m.names.types[c]
		if d.alias != "" && m.names.now(d.alias) == c {
			continue
		}
		w.doc(name, m.typeDocs[c], c)
		switch {
		case m.target.wanted(d.alias):
			w.printf("type %s = %s\n\n", name, m.names.types[d.alias])
		case isRecord(d.typ):
			if d.typ.IsIncomplete() {
				return fmt.Errorf("%s is never defined", c)
			}
			if first := m.names.records[recordID(d.typ)]; first != name {
				w.printf("type %s = %s\n\n", name, first)
				break
			}
			if err := m.emitRecord(w, name, c, d.typ); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
		default:
			base, err := m.underlying(d.typ)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			w.printf("type %s %s\n\n", name, base)
		}
		done[c] = true
	}
	return nil
}

// emitRecord writes a struct or a union, followed by the anonymous records in it.
func (m *model) emitRecord(w *writer, name, c string, r cc.Type) error {
	inner := m.nameInner(name, r)
	if r.Kind() == cc.Union {
		if err := m.emitUnion(w, name, c, r); err != nil {
			return err
		}
	} else {
		w.printf("type %s struct {\n\t_ structs.HostLayout\n", name)
		for _, f := range fields(r) {
			t, err := m.fieldType(c, f)
			if err != nil {
				return fmt.Errorf("field %s: %w", f.Name(), err)
			}
			if f.Name() == "" {
				w.printf("\t%s\n", t)
				continue
			}
			w.printf("\t%s %s\n", exported(f.Name()), t)
		}
		w.printf("}\n\n")
	}
	for _, i := range inner {
		what := "struct"
		if i.record.Kind() == cc.Union {
			what = "union"
		}
		w.comment("", fmt.Sprintf("%s is the %s inside [%s].", i.name, what, name))
		if err := m.emitRecord(w, i.name, c, i.record); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) fieldType(c string, f *cc.Field) (string, error) {
	if t := m.target.override(c, f.Name()); t != "" {
		return t, nil
	}
	return m.goType(f.Type())
}

type innerRecord struct {
	name   string
	record cc.Type
}

// nameInner names the records that are defined inside another one: the outer name, an underscore and the field's name.
func (m *model) nameInner(name string, r cc.Type) []innerRecord {
	var out []innerRecord
	for i, f := range fields(r) {
		t := f.Type()
		for t.Kind() == cc.Array {
			t = t.(*cc.ArrayType).Elem()
		}
		if !isRecord(t) || m.names.records[recordID(t)] != "" {
			continue
		}
		field := f.Name()
		if field == "" {
			field = "union"
			if t.Kind() == cc.Struct {
				field = fmt.Sprintf("struct%d", i)
			}
		}
		inner := name + "_" + field
		m.names.records[recordID(t)] = inner
		out = append(out, innerRecord{inner, t})
	}
	return out
}

// emitUnion writes a union as bytes of the right size and alignment, with a method that returns a pointer to each
// member.
func (m *model) emitUnion(w *writer, name, c string, r cc.Type) error {
	w.printf("type %s struct {\n\t_ structs.HostLayout\n\tdata [%d]uint%d\n}\n\n", name, r.Size()/int64(r.Align()), 8*r.Align())
	for _, f := range fields(r) {
		t, err := m.fieldType(c, f)
		if err != nil {
			return fmt.Errorf("member %s: %w", f.Name(), err)
		}
		w.comment("", fmt.Sprintf("%s returns a pointer to the member %s of the union.", exported(f.Name()), f.Name()))
		w.printf("func (u *%s) %s() *%s { return (*%s)(unsafe.Pointer(u)) }\n\n", name, exported(f.Name()), t, t)
	}
	return nil
}
