package codec

import (
	"io"
	"reflect"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// CloseValue closes every tensor and state dict in a value.
func CloseValue(v any) {
	if v != nil {
		c := walker{visit: func(held io.Closer) { held.Close() }}
		c.walk(reflect.ValueOf(v), 0)
	}
}

// StoragesIn returns the storages of every tensor and state dict in a value, borrowed. It may contain duplicates.
func StoragesIn(v any) (list []*tensor.Storage) {
	if v == nil {
		return nil
	}
	c := walker{visit: func(held io.Closer) {
		switch held := held.(type) {
		case *tensor.Tensor:
			list = append(list, held.Storage())
		case *module.StateDict:
			list = append(list, held.Storages()...)
		}
	}}
	c.walk(reflect.ValueOf(v), 0)
	return list
}

// walker visits the tensors and state dicts in a value. A value may be cyclic, so below usualDepth the walker records
// the pointers that it has visited.
type walker struct {
	visit func(io.Closer) // receives the tensors and state dicts
	seen  map[place]struct{}
}

// place identifies a pointer or map by address and type.
type place struct {
	at  uintptr
	typ reflect.Type
}

// usualDepth is the depth up to which the walker does not check for cycles.
const usualDepth = 16

func (c *walker) walk(v reflect.Value, depth int) {
	t := v.Type()
	if !MayHoldTensors(t) {
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Map, reflect.Slice:
		if v.IsNil() || c.visited(v, depth) {
			return
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		switch held := v.Interface().(type) {
		case *tensor.Tensor:
			c.visit(held)
		case *module.StateDict:
			c.visit(held)
		default:
			c.walk(v.Elem(), depth+1)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			c.walk(v.Index(i), depth+1)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			c.walk(it.Value(), depth+1)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if held := f.get(v); held.IsValid() {
				c.walk(held, depth+1)
			}
		}
	}
}

// visited reports whether the walker has visited v before, and records it.
func (c *walker) visited(v reflect.Value, depth int) bool {
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
