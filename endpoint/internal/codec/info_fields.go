package codec

import (
	"reflect"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Bounds of what is told of a type: how deep, how many fields, and how much of each name.
const (
	DescribedDepth  = 4
	DescribedFields = 256
	DescribedBytes  = 128
)

// DescribeFields lists the fields of the struct that t is or holds; none where there is no such struct.
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
		list = append(list, message.FieldInfo{
			Name: Clipped(f.name), Type: Clipped(TypeName(f.typ)), Optional: optional(t, f), Fields: fieldsBelow(f.typ, depth-1, left),
		})
	}
	return list
}

// structOf is the struct that t is, or that its elements are, if it crosses as a map of its fields; else nil.
func structOf(t reflect.Type) reflect.Type {
	for !IsTensor(t) && !crossesWhole(t) {
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

// crossesWhole reports whether t has an encoding of its own, or is a struct that crosses as a list.
func crossesWhole(t reflect.Type) bool {
	if t.Kind() == reflect.Struct {
		if f, found := t.FieldByName("_"); found && strings.Contains(f.Tag.Get("cbor"), ",toarray") {
			return true
		}
	}
	return t == reflect.TypeFor[time.Time]() || encodesItself(t)
}

// TypeName is the name of a type; a struct without one is not spelt out, as its fields are listed.
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

// optional reports whether a field of t may be left out.
func optional(t reflect.Type, f field) bool {
	_, options, _ := nameOf(t.FieldByIndex(f.index))
	for _, word := range options {
		if word == "omitempty" || word == "omitzero" {
			return true
		}
	}
	return f.typ.Kind() == reflect.Pointer && !IsTensor(f.typ)
}

// Clipped is a name as it is told of a type, cut where it is long.
func Clipped(text string) string {
	if len(text) <= DescribedBytes {
		return text
	}
	return strings.ToValidUTF8(text[:DescribedBytes], "") + "…"
}
