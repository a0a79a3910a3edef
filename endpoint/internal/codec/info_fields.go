package codec

import (
	"reflect"
	"strings"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Limits of a type's description: the depth, the number of fields and the length of each name.
const (
	DescribedDepth  = 4
	DescribedFields = 256
	DescribedBytes  = 128
)

// DescribeFields returns the fields of the struct that t is or contains, or nil if there is no such struct.
func DescribeFields(t reflect.Type) []message.FieldInfo {
	left := DescribedFields
	return fieldsBelow(t, DescribedDepth, &left)
}

func fieldsBelow(t reflect.Type, depth int, left *int) (list []message.FieldInfo) {
	t = structOf(t)
	if t == nil || depth == 0 {
		return nil
	}
	for _, f := range fieldsOf(t) {
		if *left == 0 {
			break
		}
		*left--
		spec, _ := specOf(f, "") // CheckType has reported errors
		list = append(list, message.FieldInfo{
			Tensor: spec, Name: Clipped(f.name), Type: Clipped(TypeName(f.typ)), Optional: optional(t, f), Fields: fieldsBelow(f.typ, depth-1, left),
		})
	}
	return list
}

// structOf returns t or its element type if that is a struct encoded as a map, or nil.
func structOf(t reflect.Type) reflect.Type {
	for !IsTensor(t) && !encodedWhole(t) {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			t = t.Elem()
			continue
		case reflect.Struct:
			return t
		}
		break
	}
	return nil
}

// encodedWhole reports whether t encodes itself, or is a struct that is encoded as a list.
func encodedWhole(t reflect.Type) bool {
	return t == timeType || encodesItself(t) || t.Kind() == reflect.Struct && layoutOf(t).list
}

// TypeName returns the name of a type. An unnamed struct is not spelled out, because its fields are listed.
func TypeName(t reflect.Type) string {
	switch {
	case t.Name() != "":
		return t.String()
	case t.Kind() == reflect.Struct:
		return "struct"
	case t.Kind() == reflect.Pointer:
		return "*" + TypeName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + TypeName(t.Elem())
	case t.Kind() == reflect.Map:
		return "map[" + TypeName(t.Key()) + "]" + TypeName(t.Elem())
	}
	return t.String()
}

// optional reports whether a field of t may be omitted.
func optional(t reflect.Type, f field) bool {
	_, options, _ := nameOf(t.FieldByIndex(f.index))
	for _, word := range options {
		if word == "omitempty" || word == "omitzero" {
			return true
		}
	}
	return f.typ.Kind() == reflect.Pointer && !IsTensor(f.typ)
}

// Clipped truncates a long name of a type or field.
func Clipped(text string) string {
	if len(text) <= DescribedBytes {
		return text
	}
	return strings.ToValidUTF8(text[:DescribedBytes], "") + "…"
}
