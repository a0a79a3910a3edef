package codec

import (
	"reflect"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A missing field of an argument is an error with its name, unless the field is optional: a pointer (but not to a
// tensor), omitempty or omitzero in its tag, or a field of an embedded pointer to a struct. Otherwise the function
// would receive a zero value that the caller has not sent, or a nil tensor.

// requirements are the fields that the encoding of a struct must contain.
type requirements struct {
	fields map[string]requirement
	needed int // number of fields that are not optional
}

type requirement struct {
	typ      reflect.Type
	optional bool
}

var requirementsOf sync.Map // reflect.Type to *requirements

// requirementsFor returns the requirements of a struct.
func requirementsFor(t reflect.Type) *requirements {
	if r, ok := requirementsOf.Load(t); ok {
		return r.(*requirements)
	}
	r := &requirements{fields: map[string]requirement{}}
	for _, f := range fieldsOf(t) {
		optional := optional(t, f) || behindPointer(t, f)
		r.fields[f.name] = requirement{f.typ, optional}
		if !optional {
			r.needed++
		}
	}
	requirementsOf.Store(t, r)
	return r
}

// behindPointer reports whether a field is promoted from an embedded pointer, which may be nil.
func behindPointer(t reflect.Type, f field) bool {
	for _, i := range f.index[:len(f.index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			return true
		}
	}
	return false
}

var requiring sync.Map // reflect.Type to bool

// requires reports whether the encoding of a t must contain a value that is not optional.
func requires(t reflect.Type) bool {
	if r, ok := requiring.Load(t); ok {
		return r.(bool)
	}
	r := leadsToStruct(t, map[reflect.Type]bool{})
	requiring.Store(t, r)
	return r
}

func leadsToStruct(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || IsTensor(t) || encodedWhole(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return leadsToStruct(t.Elem(), seen)
	case reflect.Struct:
		return len(fieldsOf(t)) > 0
	}
	return false
}

// missing returns an error if raw, which was decoded as a t, lacks a required field.
func missing(raw message.RawMessage, t reflect.Type) error {
	if !requires(t) || IsNull(raw) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return missing(raw, t.Elem())
	case reflect.Struct:
		return missingOf(raw, t)
	case reflect.Slice, reflect.Array:
		i := 0
		for item := range message.Items(raw) {
			if err := missing(item, t.Elem()); err != nil {
				return inElement(i, err)
			}
			i++
		}
	case reflect.Map:
		for key, value := range message.Pairs(raw) {
			if err := missing(value, t.Elem()); err != nil {
				return inKey(shownValue(key), err)
			}
		}
	}
	return nil
}

// missingOf is missing for a struct.
func missingOf(raw message.RawMessage, t reflect.Type) error {
	r, found := requirementsFor(t), 0
	for key, value := range message.Pairs(raw) {
		name, ok := message.Text(key)
		if !ok {
			continue
		}
		f, known := r.fields[string(name)]
		if !known {
			continue
		}
		if !f.optional {
			if IsNull(value) && !nullable(f.typ) {
				return inField(string(name), noValue(f.typ))
			}
			found++
		}
		if err := missing(value, f.typ); err != nil {
			return inField(string(name), err)
		}
	}
	if found == r.needed {
		return nil
	}
	parts, err := partsOf(raw, t)
	if err != nil {
		return err
	}
	for _, f := range fieldsOf(t) {
		if _, ok := parts[f.name]; !ok && !r.fields[f.name].optional {
			return inField(f.name, noValue(f.typ))
		}
	}
	return nil
}

// noValue returns the error for a missing field.
func noValue(t reflect.Type) error { return unfit("it is missing; expected %s", expected(t)) }

// nullable reports whether null is a valid t: a nil pointer or interface, an empty slice or map, because Go encodes a nil
// one as null, or a type that decodes itself.
func nullable(t reflect.Type) bool {
	switch {
	case IsTensor(t):
		return false
	case encodedWhole(t):
		return true
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return true
	}
	return false
}
