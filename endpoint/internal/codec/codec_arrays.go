package codec

import (
	"reflect"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The cbor library truncates a list that is too long for a Go array and pads one that is too short. Values with arrays
// are therefore decoded field by field down to the arrays, like values with tensors.

var arrayHolders sync.Map // reflect.Type to bool

// holdsArray reports whether values of t can contain arrays that the cbor library would fill.
func holdsArray(t reflect.Type) bool {
	if h, ok := arrayHolders.Load(t); ok {
		return h.(bool)
	}
	h := leadsToArray(t, map[reflect.Type]bool{})
	arrayHolders.Store(t, h)
	return h
}

func leadsToArray(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || encodesItself(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Array:
		return true
	case reflect.Pointer, reflect.Slice:
		return leadsToArray(t.Elem(), seen)
	case reflect.Map:
		return leadsToArray(t.Key(), seen) || leadsToArray(t.Elem(), seen)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if leadsToArray(f.typ, seen) {
				return true
			}
		}
	}
	return false
}

// decodeBytes decodes a byte string into an array of bytes of the same length.
func decodeBytes(raw message.RawMessage, v reflect.Value) error {
	var b []byte
	if err := message.UnmarshalPlain(raw, &b); err != nil {
		return err
	}
	if len(b) != v.Len() {
		return mismatch(raw, v.Type())
	}
	reflect.Copy(v, reflect.ValueOf(b))
	return nil
}
