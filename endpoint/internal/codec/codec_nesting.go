package codec

import (
	"encoding"
	"fmt"
	"reflect"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A value that holds itself would be encoded without an end: the cbor library goes down until the stack is full, which
// no recover catches. Only values of types that lead back to themselves can do that, and only those are walked before
// they are encoded.

var errTooDeep = fmt.Errorf("%w: nested too deep, or in itself", message.ErrEncoding)

// checkNesting refuses a value without tensors that is nested too deep, or in itself. depth is that of the value.
func checkNesting(v reflect.Value, depth int) error {
	if tooDeep(v, depth) {
		return errTooDeep
	}
	return nil
}

func tooDeep(v reflect.Value, depth int) bool {
	if !nests(v.Type()) {
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

var nestings sync.Map // reflect.Type to bool

// nests reports whether t is, or has below it, a type that leads back to itself. Interfaces do not count: the encoder
// looks into them itself.
func nests(t reflect.Type) bool {
	if n, ok := nestings.Load(t); ok {
		return n.(bool)
	}
	n := leadsBack(t, map[reflect.Type]bool{})
	nestings.Store(t, n)
	return n
}

// leadsBack looks for a type below t that is on the way to itself. way has true for the types above t, and false for
// those that were searched in vain.
func leadsBack(t reflect.Type, way map[reflect.Type]bool) bool {
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
		return leadsBack(t.Elem(), way)
	case reflect.Map:
		return leadsBack(t.Key(), way) || leadsBack(t.Elem(), way)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if leadsBack(f.typ, way) {
				return true
			}
		}
	}
	return false
}

var (
	selfEncoder   = reflect.TypeFor[interface{ MarshalCBOR() ([]byte, error) }]()
	binaryEncoder = reflect.TypeFor[encoding.BinaryMarshaler]()
)

// encodesItself reports whether the cbor library leaves the encoding of t to t.
func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(selfEncoder) || p.Implements(binaryEncoder)
}
