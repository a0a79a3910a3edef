package main

import (
	"fmt"
	"go/token"
	"regexp"
	"strings"

	"modernc.org/cc/v4"
)

// exported capitalises the first letter after any underscores.
func exported(name string) string {
	name = strings.TrimLeft(name, "_")
	if name == "" {
		return "X"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// names maps the header's types to Go names.
type names struct {
	current map[string]string         // typedef of one form, such as X_v1, to the current typedef X
	taken   map[string]string         // Go name to its C name
	types   map[string]string         // typedef in C to Go name
	records map[string]string         // Go name of a record, by recordID
	enums   map[*cc.Enumerator]string // Go name of an enumeration, by enumID
	first   map[string]cc.Type        // the record of its first typedef
	named   map[string]bool           // the records in first, by recordID
	owners  map[*cc.Enumerator]string // the typedef of an enumeration, by enumID
}

func newNames(m *model) (*names, error) {
	n := &names{
		current: map[string]string{}, taken: map[string]string{}, types: map[string]string{},
		records: map[string]string{}, enums: map[*cc.Enumerator]string{},
		first: map[string]cc.Type{}, named: map[string]bool{}, owners: map[*cc.Enumerator]string{},
	}
	claim := func(name, c string) error {
		if other, ok := n.taken[name]; ok {
			return fmt.Errorf("%s and %s both become %s", other, c, name)
		}
		n.taken[name] = c
		return nil
	}
	for _, f := range m.functions {
		f.goName = m.target.goName(f.name)
		if err := claim(f.goName, f.name); err != nil {
			return nil, err
		}
	}
	for _, c := range m.constantNames() {
		if err := claim(m.target.constantName(c), c); err != nil {
			return nil, err
		}
	}
	for _, d := range m.header.typedefs {
		if d.alias != "" && versionSuffixAny.ReplaceAllString(d.alias, "") == d.name {
			n.current[d.alias] = d.name
		}
	}
	for _, d := range m.header.typedefs {
		if !m.target.wanted(d.name) {
			continue
		}
		c := n.now(d.name)
		if _, ok := n.types[c]; !ok {
			name := m.target.typeName(c)
			if _, clash := n.taken[name]; clash {
				name = exported(c)
			}
			if err := claim(name, c); err != nil {
				return nil, err
			}
			n.types[c] = name
		}
		n.types[d.name] = n.types[c]
		if d.alias != "" {
			continue
		}
		if e, ok := d.typ.(*cc.EnumType); ok && n.enums[enumID(e)] == "" {
			n.enums[enumID(e)] = n.types[c]
			n.owners[enumID(e)] = c
		} else if id := recordID(d.typ); id != "" && n.records[id] == "" {
			n.records[id] = n.types[c]
			n.first[c] = d.typ
			n.named[id] = true
		}
	}
	return n, nil
}

var versionSuffixAny = regexp.MustCompile(`_[vV][0-9]+$`)

// now returns the current typedef for one form of a type.
func (n *names) now(c string) string {
	if current, ok := n.current[c]; ok {
		return current
	}
	return c
}

// paramName returns a parameter's name, changed if it conflicts with Go's keywords or names in the generated bodies.
func paramName(c string, index int) string {
	c = strings.TrimLeft(c, "_")
	switch {
	case c == "":
		return fmt.Sprintf("arg%d", index)
	case c == "error":
		return "result"
	case token.IsKeyword(c), c == "unsafe", c == "uintptr":
		return c + "_"
	}
	// The header uses both Flags and flags. A parameter of a Go function starts with a small letter.
	if c[0] >= 'A' && c[0] <= 'Z' && !(len(c) > 1 && c[1] >= 'A' && c[1] <= 'Z') {
		c = strings.ToLower(c[:1]) + c[1:]
	}
	if c == "N" {
		c = "n"
	}
	return c
}
