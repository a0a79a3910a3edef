package endpoint

import (
	"reflect"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// FieldInfo describes a field of a struct that is an argument or a result, or stands in one.
type FieldInfo struct {
	// Name is the name on the wire.
	Name string `json:"name"`
	// Type is its Go type, for people.
	Type string `json:"type"`
	// Optional tells that it may be left out: the type is a pointer, or the tag says omitempty or omitzero. An
	// argument in which another field is left out is refused.
	Optional bool `json:"optional,omitempty"`
	// Fields are those of the struct that the field is or holds, down to a certain depth.
	Fields []FieldInfo `json:"fields,omitempty"`
}

// Bounds of what is told of a type: how deep, how many fields, and how much of each name.
const (
	describedDepth  = 4
	describedFields = 256
	describedBytes  = 128
)

// describeFields lists the fields of the struct that t is or holds; none where there is no such struct.
func describeFields(t reflect.Type) []message.FieldInfo {
	left := describedFields
	return fieldsBelow(t, describedDepth, &left)
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
			Name: clipped(f.name), Type: clipped(typeName(f.typ)), Optional: optional(t, f), Fields: fieldsBelow(f.typ, depth-1, left),
		})
	}
	return list
}

// structOf is the struct that t is, or that its elements are, if it crosses as a map of its fields; else nil.
func structOf(t reflect.Type) reflect.Type {
	for !isTensor(t) && !crossesWhole(t) {
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

// crossesWhole tells whether t has an encoding of its own, or is a struct that crosses as a list.
func crossesWhole(t reflect.Type) bool {
	if t.Kind() == reflect.Struct {
		if f, found := t.FieldByName("_"); found && strings.Contains(f.Tag.Get("cbor"), ",toarray") {
			return true
		}
	}
	return t == reflect.TypeFor[time.Time]() || encodesItself(t)
}

// typeName is the name of a type; a struct without one is not spelt out, as its fields are listed.
func typeName(t reflect.Type) string {
	switch {
	case t.Name() != "":
		return t.String()
	case t.Kind() == reflect.Struct:
		return "struct"
	case t.Kind() == reflect.Pointer:
		return "*" + typeName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + typeName(t.Elem())
	case t.Kind() == reflect.Map:
		return "map[" + typeName(t.Key()) + "]" + typeName(t.Elem())
	}
	return t.String()
}

// optional tells whether a field of t may be left out.
func optional(t reflect.Type, f field) bool {
	_, options, _ := nameOf(t.FieldByIndex(f.index))
	for _, word := range options {
		if word == "omitempty" || word == "omitzero" {
			return true
		}
	}
	return f.typ.Kind() == reflect.Pointer && !isTensor(f.typ)
}

func clipped(text string) string {
	if len(text) <= describedBytes {
		return text
	}
	return strings.ToValidUTF8(text[:describedBytes], "") + "…"
}

// decodeFields is what a caller makes of fields that crossed.
func decodeFields(in []message.FieldInfo) []FieldInfo {
	if len(in) == 0 {
		return nil
	}
	list := make([]FieldInfo, len(in))
	for i, f := range in {
		list[i] = FieldInfo{Name: f.Name, Type: f.Type, Optional: f.Optional, Fields: decodeFields(f.Fields)}
	}
	return list
}
