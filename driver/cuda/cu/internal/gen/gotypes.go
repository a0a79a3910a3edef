package main

import (
	"fmt"

	"modernc.org/cc/v4"
)

// goType returns the Go type for a C type.
func (m *model) goType(t cc.Type) (string, error) {
	if c := typedefName(t); m.target.wanted(c) {
		name, ok := m.names.types[c]
		if !ok {
			return "", fmt.Errorf("%s is not a type that programs see", c)
		}
		return name, nil
	}
	return m.underlying(t)
}

// underlying returns the Go type for a C type without the name of its typedef.
func (m *model) underlying(t cc.Type) (string, error) {
	switch t := t.(type) {
	case *cc.ArrayType:
		elem, err := m.goType(t.Elem())
		return fmt.Sprintf("[%d]%s", t.Len(), elem), err
	case *cc.StructType, *cc.UnionType:
		if name := m.names.records[recordID(t)]; name != "" {
			return name, nil
		}
	case *cc.EnumType:
		if name := m.names.enums[enumID(t)]; name != "" {
			return name, nil
		}
	case *cc.PointerType:
		elem := t.Elem()
		if elem.Kind() == cc.Void {
			return "unsafe.Pointer", nil
		}
		if elem.Kind() == cc.Function || isRecord(elem) && elem.IsIncomplete() {
			return "uintptr", nil
		}
		s, err := m.goType(elem)
		return "*" + s, err
	}
	switch {
	case t.Kind() == cc.Char || t.Kind() == cc.UChar:
		return "byte", nil
	case cc.IsFloatingPointType(t):
		return fmt.Sprintf("float%d", 8*t.Size()), nil
	case cc.IsSignedInteger(t):
		return fmt.Sprintf("int%d", 8*t.Size()), nil
	case cc.IsIntegerType(t):
		return fmt.Sprintf("uint%d", 8*t.Size()), nil
	}
	return "", fmt.Errorf("no Go type for %s", t)
}
