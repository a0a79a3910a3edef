package endpoint

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Arguments and results are Go values: scalars, strings, bytes, slices, arrays, maps, structs, pointers, tensors and state dicts, nested
// freely. They cross as CBOR by the rules of the cbor library (field names by `cbor` and `json` tags), with a tag where a
// tensor or a state dict stands. A type that holds neither goes through the library as a whole; of the others only the way
// down to the tensors is walked here.

var (
	tensorType    = reflect.TypeFor[*tensor.Tensor]()
	stateDictType = reflect.TypeFor[*module.StateDict]()
)

// holding says whether values of a type can hold tensors.
type holding uint8

const (
	plain holding = iota // never
	holds                // perhaps

)

var holdings sync.Map // reflect.Type to holding

// mayHold tells whether values of t can hold tensors.
func mayHold(t reflect.Type) bool {
	if h, ok := holdings.Load(t); ok {
		return h.(holding) != plain
	}
	h := plain
	if search(t, map[reflect.Type]bool{}) {
		h = holds
	}
	holdings.Store(t, h)
	return h != plain
}

// search looks for a tensor below t.
func search(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == tensorType || t == stateDictType {
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

// checkType refuses types that cannot cross, when an endpoint is registered and not when it is called.
func checkType(t reflect.Type) error { return refuseBelow(t, t.String(), map[reflect.Type]bool{}) }

func refuseBelow(t reflect.Type, path string, seen map[reflect.Type]bool) error {
	if t == tensorType || t == stateDictType || seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Uintptr:
		return fmt.Errorf("%w: %s: a %s cannot cross to another process", ErrInvalid, path, t.Kind())
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return refuseBelow(t.Elem(), path, seen)
	case reflect.Map:
		if err := refuseBelow(t.Key(), path+" key", seen); err != nil {
			return err
		}
		return refuseBelow(t.Elem(), path, seen)
	case reflect.Struct:
		if t == tensorType.Elem() || t == stateDictType.Elem() {
			return fmt.Errorf("%w: %s: tensors and state dicts cross as pointers", ErrInvalid, path)
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

// fieldsOf lists the fields of a struct as the cbor library names them. Embedded structs without a name of their own count as
// part of the struct around them.
func fieldsOf(t reflect.Type) []field {
	var list []field
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("cbor")
		if !ok {
			tag = f.Tag.Get("json")
		}
		name, options, _ := strings.Cut(tag, ",")
		embedded := f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct
		if !f.IsExported() || tag == "-" || embedded || len(f.Index) > 1 && !reachable(t, f.Index) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		list = append(list, field{
			name: name, typ: f.Type, index: f.Index, omitEmpty: slices.Contains(strings.Split(options, ","), "omitempty"),
		})
	}
	return list
}

// reachable tells whether a promoted field is reached through embedded structs only: through pointers, or through a struct that has a
// name of its own in the encoding, it is not part of the outer struct.
func reachable(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		f := t.Field(i)
		if f.Type.Kind() != reflect.Struct || f.Tag.Get("cbor") != "" || f.Tag.Get("json") != "" {
			return false
		}
		t = f.Type
	}
	return true
}
