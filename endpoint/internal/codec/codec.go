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
// state dicts, nested freely. They cross as CBOR by the rules of the cbor library (field names by `cbor` and `json`
// tags), with a tag where a tensor or a state dict stands. A type that holds neither goes through the library as a
// whole; of the others only the way down to the tensors is walked here.

var (
	tensorType    = reflect.TypeFor[*tensor.Tensor]()
	stateDictType = reflect.TypeFor[*module.StateDict]()
)

var holdings sync.Map // reflect.Type to bool

// MayHoldTensors reports whether values of t can hold tensors.
func MayHoldTensors(t reflect.Type) bool {
	if h, ok := holdings.Load(t); ok {
		return h.(bool)
	}
	h := search(t, map[reflect.Type]bool{})
	holdings.Store(t, h)
	return h
}

// search looks for a tensor below t. One that does not stand as a pointer counts: it is refused where it is met.
func search(t reflect.Type, seen map[reflect.Type]bool) bool {
	if IsTensor(t) || byValue(t) {
		return true
	}
	if seen[t] {
		return false // found below its first occurrence, or not at all
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return search(t.Elem(), seen)
	case reflect.Map:
		return search(t.Elem(), seen)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if search(f.typ, seen) {
				return true
			}
		}
	}
	return false
}

// IsTensor reports whether t is that of a tensor or a state dict as it crosses.
func IsTensor(t reflect.Type) bool { return t == tensorType || t == stateDictType }

// byValue reports whether t is a tensor or a state dict without the pointer, which would cross as an empty struct.
func byValue(t reflect.Type) bool { return t == tensorType.Elem() || t == stateDictType.Elem() }

func errByValue(path string) error {
	return status.Capability(fmt.Errorf("%w: %s: tensors and state dicts cross as pointers", status.ErrInvalid, path))
}

// CheckType refuses types that cannot cross, when an endpoint is registered and not when it is called.
func CheckType(t reflect.Type) error { return refuseBelow(t, t.String(), map[reflect.Type]bool{}) }

func refuseBelow(t reflect.Type, path string, seen map[reflect.Type]bool) error {
	if IsTensor(t) || seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("%w: %s: nobody could tell which %s to make at the other end", status.ErrInvalid, path, t)
		}
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Uintptr:
		return fmt.Errorf("%w: %s: a %s cannot cross to another process", status.ErrInvalid, path, t.Kind())
	case reflect.Complex64, reflect.Complex128:
		if !encodesItself(t) {
			return fmt.Errorf("%w: %s: a %s cannot cross, send its two parts", status.ErrInvalid, path, t.Kind())
		}
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return refuseBelow(t.Elem(), path, seen)
	case reflect.Map:
		if err := refuseBelow(t.Key(), path+" key", seen); err != nil {
			return err
		}
		return refuseBelow(t.Elem(), path, seen)
	case reflect.Struct:
		if byValue(t) {
			return errByValue(path)
		}
		for _, f := range fieldsOf(t) {
			if err := refuseBelow(f.typ, path+"."+f.name, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// field is one field of a struct that crosses.
type field struct {
	name      string
	typ       reflect.Type
	index     []int
	omitEmpty bool
}

var fieldLists sync.Map // reflect.Type to []field

// fieldsOf lists the fields of a struct as the cbor library names them. Embedded structs without a name of their own,
// and those behind embedded pointers, count as part of the struct around them. Of two fields with one name the outer
// one counts.
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
		next := field{name: name, typ: f.Type, index: f.Index, omitEmpty: slices.Contains(options, "omitempty")}
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

// nameOf is the name of a field on the wire and its options, or that it is left out.
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

// flattened reports whether f is an embedded struct, or a pointer to one, whose fields count as those of the struct
// around it.
func flattened(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return f.Anonymous && t.Kind() == reflect.Struct && !IsTensor(f.Type) && f.Tag.Get("cbor") == "" && f.Tag.Get("json") == ""
}

// reachable reports whether a promoted field is reached through flattened structs only.
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

// get is the field of v; the zero Value where an embedded pointer on the way is nil.
func (f field) get(v reflect.Value) reflect.Value {
	field, err := v.FieldByIndexErr(f.index)
	if err != nil {
		return reflect.Value{}
	}
	return field
}

// make is the field of v, which is made reachable.
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
