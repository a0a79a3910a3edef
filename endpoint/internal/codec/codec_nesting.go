package codec

import (
	"encoding"
	"fmt"
	"reflect"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Encoding a cyclic value would not end: the cbor library recurses until the stack overflows, which recover cannot
// catch. Only values of recursive types can be cyclic, so only they are checked before they are encoded.

var errTooDeep = fmt.Errorf("%w: the value is cyclic or nested too deeply", message.ErrEncoding)

// checkNesting returns an error for a value without tensors that is cyclic or nested too deeply. depth is the depth of
// v.
func checkNesting(v reflect.Value, depth int) error {
	if tooDeep(v, depth) {
		return errTooDeep
	}
	return nil
}

func tooDeep(v reflect.Value, depth int) bool {
	if !mayRecurse(v.Type()) {
		return false
	}
	if depth > maxDepth {
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && tooDeep(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if tooDeep(v.Index(i), depth+1) {
				return true
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if tooDeep(it.Key(), depth+1) || tooDeep(it.Value(), depth+1) {
				return true
			}
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			if held := f.get(v); held.IsValid() && tooDeep(held, depth+1) {
				return true
			}
		}
	}
	return false
}

var recursive sync.Map // reflect.Type to bool

// mayRecurse reports whether t is recursive or contains a recursive type. Interfaces do not count, because the encoder
// checks their content.
func mayRecurse(t reflect.Type) bool {
	if n, ok := recursive.Load(t); ok {
		return n.(bool)
	}
	n := isRecursive(t, map[reflect.Type]bool{})
	recursive.Store(t, n)
	return n
}

// isRecursive reports whether t contains a recursive type. way holds true for the types on the current path, and false
// for those already searched.
func isRecursive(t reflect.Type, way map[reflect.Type]bool) bool {
	if above, met := way[t]; met {
		return above
	}
	if encodesItself(t) {
		return false
	}
	way[t] = true
	defer func() { way[t] = false }()
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return isRecursive(t.Elem(), way)
	case reflect.Map:
		return isRecursive(t.Key(), way) || isRecursive(t.Elem(), way)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if isRecursive(f.typ, way) {
				return true
			}
		}
	}
	return false
}

var (
	selfEncoder   = reflect.TypeFor[interface{ MarshalCBOR() ([]byte, error) }]()
	selfDecoder   = reflect.TypeFor[interface{ UnmarshalCBOR([]byte) error }]()
	binaryEncoder = reflect.TypeFor[encoding.BinaryMarshaler]()
	binaryDecoder = reflect.TypeFor[encoding.BinaryUnmarshaler]()
)

// encodesItself reports whether the cbor library calls a marshaler of t.
func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(selfEncoder) || p.Implements(binaryEncoder)
}

var textHolders sync.Map // reflect.Type to bool

// mayHoldText reports whether the encoding of a t can contain a text that this process has not checked.
func mayHoldText(t reflect.Type) bool {
	if h, ok := textHolders.Load(t); ok {
		return h.(bool)
	}
	h := leadsToText(t, map[reflect.Type]bool{})
	textHolders.Store(t, h)
	return h
}

func leadsToText(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || t == timeType {
		return false
	}
	seen[t] = true
	if encodesItself(t) {
		return true
	}
	switch t.Kind() {
	case reflect.String:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return leadsToText(t.Elem(), seen)
	case reflect.Map:
		return leadsToText(t.Key(), seen) || leadsToText(t.Elem(), seen)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if leadsToText(f.typ, seen) {
				return true
			}
		}
	}
	return false
}
