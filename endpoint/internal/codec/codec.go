// Package codec encodes Go values that hold tensors as CBOR, and decodes them again.
package codec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Arguments and results are Go values: scalars, strings, bytes, slices, arrays, maps, structs, pointers, tensors and
// state dicts, with any nesting. They are encoded as CBOR by the rules of the cbor library (fields are named by `cbor`
// and `json` tags). A tensor or state dict is encoded as a tag. The library encodes types without tensors as a whole.
// This package only walks the other types down to their tensors.

var (
	tensorType    = reflect.TypeFor[*tensor.Tensor]()
	stateDictType = reflect.TypeFor[*module.StateDict]()
)

var holdings sync.Map // reflect.Type to bool

// MayHoldTensors reports whether values of t can contain tensors.
func MayHoldTensors(t reflect.Type) bool {
	if h, ok := holdings.Load(t); ok {
		return h.(bool)
	}
	h := containsTensor(t, map[reflect.Type]bool{})
	holdings.Store(t, h)
	return h
}

// containsTensor reports whether t contains a tensor. A tensor that is not a pointer counts too: it is refused later.
func containsTensor(t reflect.Type, seen map[reflect.Type]bool) bool {
	if IsTensor(t) || byValue(t) {
		return true
	}
	if seen[t] {
		return false // t was searched before, or the search has returned to it
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return containsTensor(t.Elem(), seen)
	case reflect.Map:
		return containsTensor(t.Elem(), seen)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if containsTensor(f.typ, seen) {
				return true
			}
		}
	}
	return false
}

// IsTensor reports whether t is the encodable type of a tensor or a state dict, which is a pointer.
func IsTensor(t reflect.Type) bool { return t == tensorType || t == stateDictType }

// byValue reports whether t is a tensor or a state dict without the pointer. It would be encoded as an empty struct.
func byValue(t reflect.Type) bool { return t == tensorType.Elem() || t == stateDictType.Elem() }

func errNotPointer(path string) error {
	return status.Capability(fmt.Errorf("%w: %s: use a pointer to the tensor or state dict", status.ErrInvalid, path))
}

// CheckType returns an error for types that cannot be encoded or decoded. It is called when an endpoint is registered.
func CheckType(t reflect.Type) error { return checkType(t, t.String(), map[reflect.Type]bool{}) }

func checkType(t reflect.Type, path string, seen map[reflect.Type]bool) error {
	if IsTensor(t) || seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("%w: %s: the interface type %s cannot be decoded, use a concrete type", status.ErrInvalid, path, t)
		}
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Uintptr:
		return fmt.Errorf("%w: %s: a %s cannot be sent to another process", status.ErrInvalid, path, t.Kind())
	case reflect.Complex64, reflect.Complex128:
		if !encodesItself(t) {
			return fmt.Errorf("%w: %s: a %s cannot be encoded, send its real and imaginary parts", status.ErrInvalid, path, t.Kind())
		}
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return checkType(t.Elem(), path, seen)
	case reflect.Map:
		if err := checkType(t.Key(), path+" key", seen); err != nil {
			return err
		}
		return checkType(t.Elem(), path, seen)
	case reflect.Struct:
		if byValue(t) {
			return errNotPointer(path)
		}
		for _, f := range fieldsOf(t) {
			if _, err := specOf(f, path); err != nil {
				return err
			}
			if err := checkType(f.typ, path+"."+f.name, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// field is one encoded field of a struct.
type field struct {
	name      string
	typ       reflect.Type
	index     []int
	omitEmpty bool
	spec      string // declaration of a tensor in the tag
}

var fieldLists sync.Map // reflect.Type to []field

// fieldsOf returns the fields of a struct as the cbor library names them. Fields of embedded structs without a name
// tag, and of embedded pointers to structs, are promoted. If two fields have the same name, the outer one is used.
func fieldsOf(t reflect.Type) []field {
	if list, ok := fieldLists.Load(t); ok {
		return list.([]field)
	}
	var list []field
	place := map[string]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, ignored := nameOf(f)
		if ignored || !f.IsExported() || flattened(f) || !reachable(t, f.Index) {
			continue
		}
		next := field{name: name, typ: f.Type, index: f.Index, omitEmpty: slices.Contains(options, "omitempty"), spec: f.Tag.Get("tensor")}
		i, taken := place[name]
		switch {
		case !taken:
			place[name] = len(list)
			list = append(list, next)
		case len(next.index) < len(list[i].index):
			list[i] = next
		}
	}
	fieldLists.Store(t, list)
	return list
}

// nameOf returns the encoded name of a field and its options, and whether the field is ignored.
func nameOf(f reflect.StructField) (name string, options []string, ignored bool) {
	tag, ok := f.Tag.Lookup("cbor")
	if !ok {
		tag = f.Tag.Get("json")
	}
	if tag == "-" {
		return "", nil, true
	}
	list := strings.Split(tag, ",")
	if list[0] == "" {
		list[0] = f.Name
	}
	return list[0], list[1:], false
}

// flattened reports whether f is an embedded struct, or a pointer to one, whose fields are promoted.
func flattened(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return f.Anonymous && t.Kind() == reflect.Struct && !IsTensor(f.Type) && f.Tag.Get("cbor") == "" && f.Tag.Get("json") == ""
}

// reachable reports whether every step to a promoted field is a flattened struct.
func reachable(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		f := t.Field(i)
		if !flattened(f) || f.Type.Kind() == reflect.Pointer && !f.IsExported() {
			return false
		}
		t = f.Type
	}
	return true
}

// get returns the field of v, or the zero Value if an embedded pointer on the path is nil.
func (f field) get(v reflect.Value) reflect.Value {
	field, err := v.FieldByIndexErr(f.index)
	if err != nil {
		return reflect.Value{}
	}
	return field
}

// make returns the field of v and allocates embedded pointers on the path.
func (f field) make(v reflect.Value) reflect.Value {
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}
