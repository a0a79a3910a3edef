// Package codec encodes Go values that hold tensors as CBOR, and decodes them again.
package codec

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Arguments and results are Go values: scalars, strings, bytes, slices, arrays, maps, structs, pointers, tensors and
// state dicts, with any nesting. They are encoded as CBOR by the rules of the cbor library (fields are named by `cbor`
// and `json` tags). A tensor or state dict is encoded as a tag. The library encodes types without tensors as a whole.
// This package only walks the other types down to their tensors. [CheckType] refuses types whose values would not
// arrive as they are.

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
	if encodesItself(t) {
		return false
	}
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
