package endpoint

import (
	"reflect"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// closeValue closes every tensor and state dict in a value.
func closeValue(v any) {
	if v != nil {
		new(closer).close(reflect.ValueOf(v), 0)
	}
}

// closer closes what is in one value. A value may hold itself, so below a depth that is usual it notes where it has been.
type closer struct{ seen map[place]struct{} }

// place is a pointer or a map of a type.
type place struct {
	at  uintptr
	typ reflect.Type
}

// usualDepth is how deep values are that need no looking after.
const usualDepth = 16

func (c *closer) close(v reflect.Value, depth int) {
	t := v.Type()
	if !mayHold(t) {
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Map, reflect.Slice:
		if v.IsNil() || c.been(v, depth) {
			return
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		switch held := v.Interface().(type) {
		case *tensor.Tensor:
			held.Close()
		case *module.StateDict:
			held.Close()
		default:
			c.close(v.Elem(), depth+1)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			c.close(v.Index(i), depth+1)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			c.close(it.Value(), depth+1)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if held := f.get(v); held.IsValid() {
				c.close(held, depth+1)
			}
		}
	}
}

// been tells whether the closer was at v before.
func (c *closer) been(v reflect.Value, depth int) bool {
	if depth <= usualDepth || v.Kind() == reflect.Interface {
		return false
	}
	p := place{at: v.Pointer(), typ: v.Type()}
	if _, ok := c.seen[p]; ok {
		return true
	}
	if c.seen == nil {
		c.seen = map[place]struct{}{}
	}
	c.seen[p] = struct{}{}
	return false
}
