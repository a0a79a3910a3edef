package main

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu/internal/cheader"
)

// overrides are the Go types of parameters and fields whose C type is misleading: a descriptor or a small number in a
// void *, a device address, an id that a callback receives. A Go pointer type would be wrong for them, because the
// garbage collector fails on invalid pointers. The key is "function.parameter" or "type.field", or "*.name".
var overrides = map[string]string{
	"*.userData":            "uintptr",
	"*.extra":               "*uintptr",
	"*.optionValues":        "*uintptr",
	"*.jitOptionsValues":    "*uintptr",
	"*.libraryOptionValues": "*uintptr",
	"*.globalAddress":       "DevicePtr",
	"*.pfn":                 "*uintptr",
	"*.fptr":                "*uintptr",

	"cuMemImportFromShareableHandle.osHandle":   "uintptr",
	"cuMemPoolImportFromShareableHandle.handle": "uintptr",
	"cuMemRetainAllocationHandle.addr":          "DevicePtr",
	"cuLogicalEndpointBindAddr.ptr":             "DevicePtr",
	"cuUserObjectCreate.ptr":                    "uintptr",
	"CUaccessPolicyWindow.base_ptr":             "DevicePtr",
}

func override(owner, name string) string {
	if t, ok := overrides[owner+"."+name]; ok {
		return t
	}
	return overrides["*."+name]
}

// goType returns the Go type for a C type.
func (m *model) goType(t *cheader.Type) (string, error) {
	switch t.Kind {
	case cheader.Typedef:
		if wanted(t.Name) {
			name, ok := m.names.types[t.Name]
			if !ok {
				return "", fmt.Errorf("%s is not a type that programs see", t.Name)
			}
			return name, nil
		}
		return m.goType(t.Elem)
	case cheader.Int:
		prefix := "uint"
		if t.Signed {
			prefix = "int"
		}
		if t.Bytes == 1 && (t.Char || !t.Signed) {
			return "byte", nil
		}
		return fmt.Sprintf("%s%d", prefix, 8*t.Bytes), nil
	case cheader.Float:
		return fmt.Sprintf("float%d", 8*t.Bytes), nil
	case cheader.Array:
		elem, err := m.goType(t.Elem)
		return fmt.Sprintf("[%d]%s", t.Len, elem), err
	case cheader.RecordKind:
		if name := m.names.records[t.Record]; name != "" {
			return name, nil
		}
	case cheader.EnumKind:
		if name := m.names.enums[t.Enum]; name != "" {
			return name, nil
		}
	case cheader.Pointer:
		elem := t.Elem.Resolve()
		if elem.Kind == cheader.Void {
			return "unsafe.Pointer", nil
		}
		if elem.Kind == cheader.Func {
			return "uintptr", nil
		}
		if elem.Kind == cheader.RecordKind && !elem.Record.Complete {
			return "uintptr", nil
		}
		s, err := m.goType(t.Elem)
		return "*" + s, err
	}
	return "", fmt.Errorf("no Go type for kind %d", t.Kind)
}
