package main

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu/internal/cheader"
)

// documentedTypes returns the typedefs that become a Go type and need a comment.
func (m *model) documentedTypes() []string {
	var out []string
	seen := map[string]bool{}
	for _, d := range m.header.Typedefs {
		if !wanted(d.Name) {
			continue
		}
		c := m.names.now(d.Name)
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
	for _, d := range m.header.Typedefs {
		c := m.names.now(d.Name)
		if !wanted(d.Name) || done[c] || d.Type.Kind == cheader.EnumKind {
			continue
		}
		name := m.names.types[c]
		switch r := d.Type; r.Kind {
		case cheader.Typedef:
			if m.names.now(r.Name) == c {
				continue
			}
			if wanted(r.Name) {
				w.doc(name, m.typeDocs[c], c)
				w.printf("type %s = %s\n\n", name, m.names.types[r.Name])
				break
			}
			base, err := m.goType(r)
			if err != nil {
				return err
			}
			w.doc(name, m.typeDocs[c], c)
			w.printf("type %s %s\n\n", name, base)
		case cheader.RecordKind:
			if !r.Record.Complete {
				return fmt.Errorf("%s is never defined", c)
			}
			if m.names.records[r.Record] != name {
				w.doc(name, m.typeDocs[c], c)
				w.printf("type %s = %s\n\n", name, m.names.records[r.Record])
				break
			}
			w.doc(name, m.typeDocs[c], c)
			if err := m.emitRecord(w, name, c, r.Record); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
		default:
			base, err := m.goType(r)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			w.doc(name, m.typeDocs[c], c)
			w.printf("type %s %s\n\n", name, base)
		}
		done[c] = true
	}
	return nil
}

// emitRecord writes a struct or a union, followed by the anonymous records in it.
func (m *model) emitRecord(w *writer, name, c string, r *cheader.Record) error {
	inner := m.nameInner(name, r)
	if r.Union {
		if err := m.emitUnion(w, name, c, r); err != nil {
			return err
		}
	} else {
		w.printf("type %s struct {\n\t_ structs.HostLayout\n", name)
		for _, f := range r.Fields {
			t, err := m.fieldType(c, f)
			if err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
			if f.Name == "" {
				w.printf("\t%s\n", t)
				continue
			}
			w.printf("\t%s %s\n", exported(f.Name), t)
		}
		w.printf("}\n\n")
	}
	for _, i := range inner {
		what := "struct"
		if i.record.Union {
			what = "union"
		}
		w.comment("", fmt.Sprintf("%s is the %s inside [%s].", i.name, what, name))
		if err := m.emitRecord(w, i.name, c, i.record); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) fieldType(c string, f cheader.Field) (string, error) {
	if t := override(c, f.Name); t != "" {
		return t, nil
	}
	return m.goType(f.Type)
}

type innerRecord struct {
	name   string
	record *cheader.Record
}

// nameInner names the records that are defined inside another one: the outer name, an underscore and the field's name.
func (m *model) nameInner(name string, r *cheader.Record) []innerRecord {
	var out []innerRecord
	for i, f := range r.Fields {
		t := f.Type
		if t.Kind != cheader.RecordKind || m.names.records[t.Record] != "" {
			continue
		}
		field := f.Name
		if field == "" {
			field = "union"
			if !t.Record.Union {
				field = fmt.Sprintf("struct%d", i)
			}
		}
		inner := name + "_" + field
		m.names.records[t.Record] = inner
		out = append(out, innerRecord{inner, t.Record})
	}
	return out
}

// emitUnion writes a union as bytes of the right size and alignment, with a method that returns a pointer to each
// member.
func (m *model) emitUnion(w *writer, name, c string, r *cheader.Record) error {
	w.printf("type %s struct {\n\t_ structs.HostLayout\n\tdata [%d]uint%d\n}\n\n", name, r.Bytes/r.Align, 8*r.Align)
	for _, f := range r.Fields {
		t, err := m.fieldType(c, f)
		if err != nil {
			return fmt.Errorf("member %s: %w", f.Name, err)
		}
		w.comment("", fmt.Sprintf("%s returns a pointer to the member %s of the union.", exported(f.Name), f.Name))
		w.printf("func (u *%s) %s() *%s { return (*%s)(unsafe.Pointer(u)) }\n\n", name, exported(f.Name), t, t)
	}
	return nil
}
