package endpoint

import (
	"reflect"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// closeValue closes every tensor and state dict in a value.
func closeValue(v any) {
	if v != nil {
		closeBelow(reflect.ValueOf(v))
	}
}

func closeBelow(v reflect.Value) {
	t := v.Type()
	if !mayHold(t) {
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		switch held := v.Interface().(type) {
		case *tensor.Tensor:
			held.Close()
		case *module.StateDict:
			held.Close()
		default:
			closeBelow(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			closeBelow(v.Index(i))
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			closeBelow(it.Value())
		}
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			closeBelow(v.FieldByIndex(f.index))
		}
	}
}
